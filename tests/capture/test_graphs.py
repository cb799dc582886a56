"""Captured graphs copy in and out; how CUDA is asked for one, with a stand-in for its streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from specframe.capture.graphs import CapturedGraph, Graphs
from specframe.capture.tensor_records import Placeholder, apart, joined
from specframe.runtime.base import Tensors
from specframe.types import DrawCall
from tests.runtime.rehearsal import Rehearsal


def doubled(inputs: Tensors, buffers: Tensors) -> Tensors:
    buffers[0].add_(1)
    return 2 * inputs[0], inputs[1]


def test_a_call_copies_in_and_out() -> None:
    buffers = (torch.zeros(2),)
    made = Rehearsal().capture(doubled, (torch.ones(3), torch.ones(1, dtype=torch.long)), buffers)
    assert buffers[0].tolist() == [0, 0], "a capture computes nothing"
    values = torch.arange(3.0)
    first = made((values, torch.tensor([5])))
    second = made((values.flip(0).expand(3), torch.tensor([6])))
    assert [one.tolist() for one in first] == [[0, 2, 4], [5]]
    assert [one.tolist() for one in second] == [[4, 2, 0], [6]]
    assert buffers[0].tolist() == [2, 2]


def test_shapes_are_fixed() -> None:
    made = CapturedGraph(inputs=(torch.zeros(3),), outputs=(), replay=lambda: None)
    assert made((torch.ones(3),)) == ()
    with pytest.raises(AssertionError, match="shapes are fixed"):
        made((torch.ones(1),))


def test_records_come_apart_and_together() -> None:
    ids = torch.arange(3)
    call = DrawCall(depth=1, how="iid", parents=ids, nodes=ids[:, None], tokens=ids[:, None] + 4)
    tensors: list[torch.Tensor] = []
    form = apart((call, 7, call), tensors)
    assert len(tensors) == 3, "each once"
    assert form[0].parents == Placeholder(0, ids.shape, torch.long)
    assert hash(form) == hash(apart((call, 7, call), []))
    assert apart((call, 8), []) != form[:2]
    back = joined(form, [one + 1 for one in tensors])
    assert back[1] == 7
    assert back[2].tokens.tolist() == [[5], [6], [7]]


class Device:
    """What is asked of torch.cuda, in order; the current stream is a name."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.current = "main"
        self.pools = 0

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("Stream", "current_stream", "set_stream", "graph_pool_handle", "CUDAGraph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        for name in ("stream", "graph", "device"):
            monkeypatch.setattr(torch.cuda, name, contextmanager(getattr(self, name)))

    def Stream(self, device: torch.device) -> Line:
        return Line(self, "side")

    def current_stream(self, device: Any = None) -> Line:
        return Line(self, self.current)

    def set_stream(self, line: Line) -> None:
        self.current = line.name

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    def CUDAGraph(self) -> Any:
        return torch.nn.Identity  # something with a name

    def device(self, device: torch.device) -> Iterator[None]:
        yield

    def stream(self, line: Line) -> Iterator[None]:
        before, self.current = self.current, line.name
        yield
        self.current = before

    def graph(self, graph: Any, **options: Any) -> Iterator[None]:
        assert options.pop("capture_error_mode") == "thread_local"
        self.asked.append(f"graph in {options['pool']} on {options['stream'].name}")
        self.current = options["stream"].name
        yield  # an exception leaves the stream as it is, as torch's own does
        self.current = "main"


class Line:
    """A stream."""

    def __init__(self, device: Device, name: str) -> None:
        self.on, self.name = device, name

    def wait_stream(self, other: Line) -> None:
        self.on.asked.append(f"{self.name} waits for {other.name}")


def test_streams_and_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    device, graphs = Device(), Graphs()
    device.stand_in(monkeypatch)
    monkeypatch.setattr(torch.nn.Identity, "replay", lambda: None, raising=False)
    seen = []

    def watched(inputs: Tensors, buffers: Tensors) -> Tensors:
        seen.append((device.current, inputs[0].is_contiguous()))
        device.asked.append("run")
        return (inputs[0] + 1,)

    wide = (torch.ones(1).expand(4),)
    assert graphs.warm(watched, wide, ())[0].tolist() == [2] * 4
    assert device.asked == ["side waits for main", "run", "main waits for side"]
    made = [graphs.capture(watched, wide, ()) for _ in range(2)]
    assert device.asked[3:] == ["graph in 1 on side", "run"] * 2
    assert seen == [("side", False), ("side", True), ("side", True)]
    assert made[0].inputs[0].data_ptr() != made[1].inputs[0].data_ptr()
    assert made[0].inputs[0].tolist() == [1] * 4

    def broken(inputs: Tensors, buffers: Tensors) -> Tensors:
        raise RuntimeError("not while capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        graphs.capture(broken, wide, ())
    assert device.current == "main"
    graphs.capture(watched, wide, ())
    assert device.asked[-2:] == ["graph in 2 on side", "run"], "a new pool"
