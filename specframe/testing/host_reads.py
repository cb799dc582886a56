"""Counts what the host reads from tensors, by a function mode and a dispatch mode together.

The function mode sees what Python asks for (`tolist`, `cpu`, `bool(...)`, a mask as an index); the
dispatch mode sees the operators that wait for a value inside others. On a CPU nothing waits, but
the same calls would on a device, so the count holds there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_FUNCTIONS = ("nonzero", "masked_select", "equal", "unique", "unique_consecutive", "is_nonzero")
_METHODS = ("item", "tolist", "cpu", "numpy", *_FUNCTIONS)
_CONVERSIONS = ("bool", "int", "float", "index", "complex", "array", "contains")
_OPERATORS = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::is_nonzero",
    "aten::equal",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::repeat_interleave.Tensor",
)
_INDEXING = ("aten::index.Tensor", "aten::index_put_", "aten::index_put")


def _reads() -> set[Callable[..., Any]]:
    names = [*_METHODS, *(f"__{name}__" for name in _CONVERSIONS)]
    found = {getattr(Tensor, name) for name in names if hasattr(Tensor, name)}
    more = ("allclose", "argwhere", *_FUNCTIONS)
    return found | {getattr(torch, name) for name in more if hasattr(torch, name)}


_READS = _reads()
_REPEATS = (torch.repeat_interleave, Tensor.repeat_interleave)


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, (tuple, list)) else (index,)
    return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in parts)


def is_read(func: Any, args: Any) -> bool:
    """Whether an operator of torch waits for a value."""
    name = func._schema.name
    full = f"{name}.{func._overloadname}" if func._overloadname != "default" else name
    masks = full in _INDEXING and _has_mask(list(args[1]))
    return masks or name in _OPERATORS or full in _OPERATORS


class HostReads:
    """The reads so far, by name, in order. `paused` leaves a model's own forward out."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.paused = False
        self.nested = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what happens inside."""
        with _Functions(self), _Operators(self):
            yield

    def excluding(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` without its reads."""
        return self._switched(fn, paused=True)

    def including(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` with its reads, although it is called from within an excluded one."""
        return self._switched(fn, paused=False)

    def _switched(self, fn: Callable[..., Any], *, paused: bool) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            held, self.paused = self.paused, paused
            try:
                return fn(*args, **kwargs)
            finally:
                self.paused = held

        return run

    def note(self, name: str) -> None:
        """One read, unless it is part of another or of a model's forward."""
        if not self.paused and not self.nested:
            self.seen.append(name)


class _Functions(TorchFunctionMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = func in (Tensor.__getitem__, Tensor.__setitem__) and _has_mask(args[1])
        single = func is torch.where and len(args) + len(kwargs or {}) == 1
        to_host = func is Tensor.to and "cpu" in [one for one in args[1:] if isinstance(one, str)]
        repeats = func in _REPEATS and isinstance([*args[1:], None][0], Tensor)
        unsized = repeats and (kwargs or {}).get("output_size") is None
        if not (func in _READS or masks or single or to_host or unsized):
            return func(*args, **(kwargs or {}))
        self._reads.note(getattr(func, "__name__", str(func)))
        self._reads.nested += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._reads.nested -= 1


class _Operators(TorchDispatchMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_read(func, args):
            self._reads.note(str(func))
        return func(*args, **(kwargs or {}))
