"""Passes captured as CUDA graphs: one launch each, whatever is inside."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from specframe.capture.graphs import CapturedGraph, GraphCapturer, Graphs
from specframe.registry import Range
from specframe.runtime.base import RUNTIMES, Launch, Pass, Runtime, Tensors, Weights


@RUNTIMES.register("cudagraph")
class CudaGraph(Runtime):
    """Verify pass, draft steps, accept and commit are one launch each; the verdict is read between.

    A function of a key runs `warmup` times as it is written, then it is captured over the buffers
    that it writes to, and replayed from then on. Where buffers move (a cache that grows) it is
    captured anew. What cannot be captured runs as it is written, and the first reason is printed
    once. Attention is the model's own, with the mask of the tree.

    max_graphs: at most so many are kept; what comes later runs as it is written. max_rows: of a
    pass that is captured; launches do not matter to a longer one. columns: slots that the narrowest
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
        launch = GraphLaunch(
            warmup=warmup,
            max_graphs=max_graphs,
            max_rows=max_rows,
            columns=columns,
            buckets=buckets,
            capturer=_capturer(),
        )
        super().__init__(launch=launch, weights=Weights())


class GraphLaunch(Launch):
    """Captures functions with a capturer and replays them; see `CudaGraph` for the numbers.

    capturer: what captures on this machine; None: every function runs as it is written.
    """

    one_width = True

    def __init__(
        self,
        *,
        warmup: int,
        max_graphs: int,
        max_rows: int,
        columns: int,
        buckets: list[int] | None,
        capturer: GraphCapturer | None,
    ) -> None:
        super().__init__(buckets)
        self.capturer = capturer
        # Runs of a function whose time is not that of the runs to come.
        self.warmup_runs = 1 if capturer is None else warmup + 1
        self._warmup, self._columns = warmup, columns
        self._max_graphs, self._max_rows = max_graphs, max_rows
        self._calls: dict[Hashable, int] = {}
        self._refused: set[Hashable] = set()
        self._captured: dict[Hashable, _Captured] = {}
        # What a captured function returned beside its tensors, by key; see `capture.wrappers`.
        self.forms: dict[Hashable, Any] = {}
        if capturer is None:
            _say("no CUDA device here")

    @property
    def captures(self) -> bool:
        """Whether anything can be captured here; then buffers must stay where they are."""
        return self.capturer is not None

    @property
    def num_graphs(self) -> int:
        """Graphs that are kept."""
        return len(self._captured)

    def forget(self) -> None:
        """Drop all graphs: they keep the components of an earlier engine alive."""
        for table in (self._calls, self._refused, self._captured, self.forms):
            table.clear()

    def columns(self, needed: int, allocated: int) -> int:
        if self.capturer is None:
            return needed
        width = self._columns
        while width < needed:
            width *= 2
        return min(width, allocated)

    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        capturer = self.capturer
        if capturer is None or key in self._refused:
            return fn

        def run(inputs: Tensors, buffers: Tensors) -> Tensors:
            if len(inputs[0].shape) and len(inputs[0]) > self._max_rows:
                return fn(inputs, buffers)
            place = (key, tuple((one.data_ptr(), one.shape) for one in buffers))
            found = self._captured.get(place)
            if found is not None:
                return found.graph(inputs)
            if not self._is_warm(key, capturer.refusal((*inputs, *buffers))):
                warm = fn if key in self._refused else functools.partial(capturer.warm, fn)
                return warm(inputs, buffers)
            graph = self._capture(fn, key, inputs, buffers)
            if graph is None:
                return fn(inputs, buffers)
            self._captured[place] = _Captured(graph, [weakref.ref(one) for one in buffers])
            return graph(inputs)

        return run

    def _is_warm(self, key: Hashable, refusal: str | None) -> bool:
        """Whether a key has run often enough to be captured; one that cannot be is never warm."""
        if refusal is not None:
            self._refuse(key, refusal)
            return False
        calls = self._calls.get(key, 0)
        self._calls[key] = calls + 1
        return calls >= self._warmup

    def _capture(
        self, fn: Pass, key: Hashable, inputs: Tensors, buffers: Tensors
    ) -> CapturedGraph | None:
        """None where there is no room, or where fn cannot be captured."""
        assert self.capturer is not None
        valid = {place: entry for place, entry in self._captured.items() if entry.is_valid()}
        self._captured = valid
        if self.num_graphs >= self._max_graphs:
            _say(f"runtime.max_graphs={self._max_graphs} are kept", what="further passes run")
            return None
        try:
            return self.capturer.capture(fn, inputs, buffers)
        except RuntimeError as error:
            self._refuse(key, str(error).partition("\n")[0], what="such passes run")
            return None

    def _refuse(self, key: Hashable, reason: str, what: str = "running") -> None:
        self._refused.add(key)
        _say(reason, what=what)


def _capturer() -> GraphCapturer | None:
    """What captures on this machine."""
    return Graphs() if torch.cuda.is_available() else None


@dataclass(frozen=True)
class _Captured:
    """A graph, and the buffers at whose addresses it is right for as long as they live."""

    graph: CapturedGraph
    buffers: list[weakref.ref[Tensor]]

    def is_valid(self) -> bool:
        return all(one() is not None for one in self.buffers)


@functools.cache
def _say(reason: str, *, what: str = "running") -> None:
    """Each reason once."""
    sys.stderr.write(f"specframe: runtime=cudagraph: {reason}; {what} as eager\n")
