"""Functions captured once at fixed addresses and replayed as a whole, and CUDA's way to do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specframe.runtime.base import Pass, Tensors


@dataclass(frozen=True, kw_only=True)
class CapturedGraph:
    """A function of tensors that reads `inputs` and leaves `outputs` wherever it is replayed.

    The memory of `outputs` is good until the next replay of any graph, so calls copy it out.
    """

    inputs: Tensors
    outputs: Tensors
    replay: Callable[[], None]

    def __call__(self, inputs: Tensors) -> Tensors:
        """The outputs for `inputs`, of the shapes captured; they are the caller's own."""
        assert [one.shape for one in inputs] == [one.shape for one in self.inputs], (
            "shapes are fixed"
        )
        _copy(self.inputs, inputs)
        self.replay()
        own = tuple(torch.empty_like(one) for one in self.outputs)
        _copy(own, self.outputs)
        return own


class GraphCapturer(Protocol):
    """Captures functions. While it does, nothing may read the host."""

    def refusal(self, tensors: Sequence[Tensor]) -> str | None:
        """Why work on these tensors cannot be captured; None if it can."""

    def warm(self, fn: Pass, inputs: Tensors, buffers: Tensors) -> Tensors:
        """fn as it is written, as it must have run before it is captured."""

    def capture(self, fn: Pass, inputs: Tensors, buffers: Tensors) -> CapturedGraph:
        """fn over inputs shaped like these, and over these very buffers, which keep their values.

        Raises RuntimeError where fn cannot be captured.
        """


class Graphs:
    """Captured functions as CUDA graphs, all in one pool of memory.

    Outputs are copied out, since what one graph leaves there another may use as scratch.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def refusal(self, tensors: Sequence[Tensor]) -> str | None:
        devices = sorted({str(one.device) for one in tensors})
        if len(devices) > 1:
            return f"a pass over several devices ({', '.join(devices)}) is no CUDA graph"
        return None if devices[0].startswith("cuda") else f"no CUDA graph on {devices[0]}"

    def warm(self, fn: Pass, inputs: Tensors, buffers: Tensors) -> Tensors:
        """On the stream of the capture, where libraries then have their handles and scratch."""
        device = inputs[0].device
        side, here = self._stream(device), torch.cuda.current_stream(device)
        # Each stream waits for the other, so that memory freed on one is not reused too early.
        side.wait_stream(here)
        with torch.cuda.device(device), torch.cuda.stream(side):
            outputs = fn(inputs, buffers)
        here.wait_stream(side)
        return outputs

    def capture(self, fn: Pass, inputs: Tensors, buffers: Tensors) -> CapturedGraph:
        device = inputs[0].device
        own = tuple(_like(one) for one in inputs)
        _copy(own, inputs)  # a pass may index by them while it is captured
        with torch.cuda.device(device):
            here, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            try:
                with torch.cuda.graph(
                    graph,
                    pool=self._pool,
                    stream=self._stream(device),
                    capture_error_mode="thread_local",  # progress bars and servers have threads
                ):
                    outputs = fn(own, buffers)
            except RuntimeError:
                # A capture that broke off leaves its stream and a doubtful pool behind.
                torch.cuda.set_stream(here)
                self._pool = None
                raise
        return CapturedGraph(inputs=own, outputs=outputs, replay=graph.replay)

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


def _like(tensor: Tensor) -> Tensor:
    """Memory of its own for a tensor's values, dense even where the tensor repeats itself."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """One launch for all of a dtype, which is as many as one launch takes."""
    alike: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, one in zip(into, values, strict=True):
        places, ones = alike.setdefault(place.dtype, ([], []))
        places.append(place)
        ones.append(one)
    for places, ones in alike.values():
        torch._foreach_copy_(places, ones)
