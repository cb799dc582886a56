"""Passes recorded as CUDA graphs: one launch each, whatever is inside."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from specframe.capture.graphs import CapturedGraph, GraphCapturer, Graphs
from specframe.registry import Range
from specframe.runtime.base import RUNTIMES, Pass, Runtime, Tensors


@RUNTIMES.register("cudagraph")
class CudaGraph(Runtime):
    """Verify pass, draft steps, accept and commit are one launch each; the verdict is read between.

    A function of a key runs `warmup` times as it is written, then it is recorded over the buffers
    that it holds, and replayed from then on. Where buffers move (a cache that grows) it is recorded
    anew. What cannot be recorded runs as it is written, and the first reason is told once.
    Attention is the model's own, with the mask of the tree.

    max_graphs: at most so many are kept; what comes later runs as it is written. max_rows: of a
    pass that is recorded; launches are no matter to a longer one. columns: slots that the narrowest
    pass sees; wider ones see twice as many, and so on, so that few widths occur.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[int, Range(1, 100)],
        max_graphs: Annotated[int, Range(1, 100_000)],
        max_rows: Annotated[int, Range(1, 100_000)],
        columns: Annotated[int, Range(1, 10_000_000)],
        buckets: list[int] | None,
    ) -> None:
        super().__init__(buckets=buckets)
        self._warmup, self._columns = warmup, columns
        self._max_graphs, self._max_rows = max_graphs, max_rows
        self.recorder = _recorder()
        self._calls: dict[Hashable, int] = {}
        self._refused: set[Hashable] = set()
        self._kept: dict[Hashable, _Kept] = {}
        self.unlike = 1 if self.recorder is None else warmup + 1
        if self.recorder is None:
            _tell("no CUDA device here")

    @property
    def recording(self) -> CudaGraph | None:
        return None if self.recorder is None else self

    @property
    def num_graphs(self) -> int:
        """Recordings that are kept."""
        return len(self._kept)

    def forget(self) -> None:
        for kept in (self._calls, self._refused, self._kept, self.forms):
            kept.clear()

    def columns(self, needed: int, room: int) -> int:
        if self.recorder is None:
            return needed
        width = self._columns
        while width < needed:
            width *= 2
        return min(width, room)

    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        recorder = self.recorder
        if recorder is None or key in self._refused:
            return fn

        def run(fed: Tensors, held: Tensors) -> Tensors:
            if len(fed[0].shape) and len(fed[0]) > self._max_rows:
                return fn(fed, held)
            place = (key, tuple((one.data_ptr(), one.shape) for one in held))
            kept = self._kept.get(place)
            if kept is not None:
                return kept.recording(fed)
            if not self._is_warm(key, recorder.refusal((*fed, *held))):
                warm = fn if key in self._refused else functools.partial(recorder.warm, fn)
                return warm(fed, held)
            recording = self._record(fn, key, fed, held)
            if recording is None:
                return fn(fed, held)
            self._kept[place] = _Kept(recording, [weakref.ref(one) for one in held])
            return recording(fed)

        return run

    def _is_warm(self, key: Hashable, refusal: str | None) -> bool:
        """Whether a key has run often enough to be recorded; one that cannot be is never warm."""
        if refusal is not None:
            self._refuse(key, refusal)
            return False
        calls = self._calls.get(key, 0)
        self._calls[key] = calls + 1
        return calls >= self._warmup

    def _record(self, fn: Pass, key: Hashable, fed: Tensors, held: Tensors) -> CapturedGraph | None:
        """None where there is no room, or where fn cannot be recorded."""
        assert self.recorder is not None
        self._kept = {place: kept for place, kept in self._kept.items() if kept.is_valid()}
        if self.num_graphs >= self._max_graphs:
            _tell(f"runtime.max_graphs={self._max_graphs} are kept", what="further passes run")
            return None
        try:
            return self.recorder.record(fn, fed, held)
        except RuntimeError as error:
            self._refuse(key, str(error).partition("\n")[0], what="such passes run")
            return None

    def _refuse(self, key: Hashable, reason: str, what: str = "running") -> None:
        self._refused.add(key)
        _tell(reason, what=what)


def _recorder() -> GraphCapturer | None:
    """What records on this machine."""
    return Graphs() if torch.cuda.is_available() else None


@dataclass(frozen=True)
class _Kept:
    """A recording, and the buffers at whose addresses it is right for as long as they live."""

    recording: CapturedGraph
    held: list[weakref.ref[Tensor]]

    def is_valid(self) -> bool:
        return all(one() is not None for one in self.held)


@functools.cache
def _tell(reason: str, *, what: str = "running") -> None:
    """Each reason once."""
    sys.stderr.write(f"specframe: runtime=cudagraph: {reason}; {what} as eager\n")
