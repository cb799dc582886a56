"""Captured graphs without a GPU, with what a CUDA graph does and does not do.

The operators of a function are stored as they were called: with the host's numbers of that moment
and the tensors of that moment, whose memory a replay writes again. So a number that changes later
is not seen, nor is a buffer that moved; what waits for the device (a value read, a tensor made of
the host's numbers) is refused; the buffers are after the capture as they were before; and a replay
spoils what every other graph left, as graphs of one pool may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specframe.capture.graphs import CapturedGraph
from specframe.runtime.base import Pass, Runtime, Tensors, Weights
from specframe.runtime.cudagraph import GraphLaunch
from specframe.testing.host_reads import is_read


@dataclass
class Rehearsal:
    """A `GraphCapturer` for the CPU. made: graphs in order; warmed: runs as written before that."""

    made: list[CapturedGraph] = field(default_factory=list)
    warmed: int = 0
    replays: int = 0
    _left: list[list[Tensor]] = field(default_factory=list)  # outputs in memory of the pool

    def refusal(self, tensors: Sequence[Tensor]) -> str | None:
        return None

    def warm(self, fn: Pass, inputs: Tensors, buffers: Tensors) -> Tensors:
        self.warmed += 1
        return fn(inputs, buffers)

    def capture(self, fn: Pass, inputs: Tensors, buffers: Tensors) -> CapturedGraph:
        inputs = tuple(one.clone(memory_format=torch.contiguous_format) for one in inputs)
        with untouched(buffers), _Tape() as tape:
            outputs = fn(inputs, buffers)
        places = {_memory(one) for one in buffers}
        assert not any(_memory(one) in places for one in outputs), "a buffer is no output"

        def replay() -> None:
            self.replays += 1
            for other in self._left:
                if other is not left:
                    spoil(other)
            tape.play()

        left = [one for one in outputs if _memory(one) in tape.memory]
        spoil(left)  # a capture computes nothing
        self._left.append(left)
        self.made.append(CapturedGraph(inputs=inputs, outputs=outputs, replay=replay))
        return self.made[-1]


def rehearsed(**changes: Any) -> Runtime:
    """runtime=cudagraph, on a CPU."""
    numbers: dict[str, Any] = {"warmup": 1, "max_graphs": 10_000, "max_rows": 13, "columns": 16}
    numbers["buckets"] = None
    launch = GraphLaunch(**{**numbers, **changes}, capturer=Rehearsal())
    return Runtime(launch=launch, weights=Weights())


@contextmanager
def untouched(buffers: Tensors) -> Iterator[None]:
    """Give the buffers their values back afterwards."""
    before = [one.clone() for one in buffers]
    try:
        yield
    finally:
        for one, values in zip(buffers, before, strict=True):
            one.copy_(values)


def spoil(tensors: Sequence[Tensor]) -> None:
    """Fill them with what nobody could take for a result."""
    for one in tensors:
        one.fill_(torch.nan if one.is_floating_point() else -77)


def decomposed(func: Any) -> bool:
    """Whether it is made of other operators, which inference mode hands over as a whole; a read may
    be among them."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


class _Tape(TorchDispatchMode):
    """The operators called, with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self.memory: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if decomposed(func):
            with self:
                return func.decompose(*args, **kwargs)
        if is_read(func, args) or func is torch.ops.aten.lift_fresh.default:
            raise RuntimeError(f"{func} waits for the device while a graph is captured")
        result = func(*args, **kwargs)
        read = {_memory(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        found = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        new = [(i, one) for i, one in enumerate(found) if _memory(one) not in read]
        self.memory |= {_memory(one) for _, one in new}
        self._calls.append((func, args, kwargs, new))
        return result

    def play(self) -> None:
        """Every operator again, on the memory of the capture."""
        for func, args, kwargs, places in self._calls:
            result = func(*args, **kwargs)
            if places:
                found = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
                for i, place in places:
                    place.copy_(found[i])


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)
