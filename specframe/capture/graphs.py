"""Work recorded once at fixed addresses and launched again as a whole, and CUDA's way to do it."""

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

    The memory of `outputs` is good until the next replay of any recording, so calls copy it out.
    """

    inputs: Tensors
    outputs: Tensors
    replay: Callable[[], None]

    def __call__(self, fed: Tensors) -> Tensors:
        """The outputs for `fed`, of the shapes recorded; they are the caller's own."""
        assert [one.shape for one in fed] == [one.shape for one in self.inputs], "shapes are fixed"
        _copy(self.inputs, fed)
        self.replay()
        own = tuple(torch.empty_like(one) for one in self.outputs)
        _copy(own, self.outputs)
        return own


class GraphCapturer(Protocol):
    """Makes recordings. While it records, nothing may read the host."""

    def refusal(self, tensors: Sequence[Tensor]) -> str | None:
        """Why work on these tensors cannot be recorded; None if it can."""

    def warm(self, fn: Pass, fed: Tensors, held: Tensors) -> Tensors:
        """fn as it is written, as it must have run before it is recorded."""

    def record(self, fn: Pass, fed: Tensors, held: Tensors) -> CapturedGraph:
        """fn over inputs shaped like `fed` and the very buffers `held`, which keep their values.

        Raises RuntimeError where fn cannot be recorded.
        """


class Graphs:
    """Recordings as CUDA graphs, all in one pool of memory, which is why outputs are copied out:
    what one graph leaves there another may use as scratch."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def refusal(self, tensors: Sequence[Tensor]) -> str | None:
        devices = sorted({str(one.device) for one in tensors})
        if len(devices) > 1:
            return f"a pass over several devices ({', '.join(devices)}) is no CUDA graph"
        return None if devices[0].startswith("cuda") else f"no CUDA graph on {devices[0]}"

    def warm(self, fn: Pass, fed: Tensors, held: Tensors) -> Tensors:
        """On the stream of the recording, where libraries then have their handles and scratch."""
        device = fed[0].device
        side, here = self._stream(device), torch.cuda.current_stream(device)
        # Each stream waits for the other, so that memory freed on one is not reused too early.
        side.wait_stream(here)
        with torch.cuda.device(device), torch.cuda.stream(side):
            outputs = fn(fed, held)
        here.wait_stream(side)
        return outputs

    def record(self, fn: Pass, fed: Tensors, held: Tensors) -> CapturedGraph:
        device = fed[0].device
        inputs = tuple(_like(one) for one in fed)
        _copy(inputs, fed)  # a pass may index by them while it is recorded
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
                    outputs = fn(inputs, held)
            except RuntimeError:
                # A capture that broke off leaves its stream and a doubtful pool behind.
                torch.cuda.set_stream(here)
                self._pool = None
                raise
        return CapturedGraph(inputs=inputs, outputs=outputs, replay=graph.replay)

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
