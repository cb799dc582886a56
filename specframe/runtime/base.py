"""The contract of a runtime: it may replace any function of fixed-shape tensors by a faster one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

from specframe.registry import Registry


class Runtime(ABC):
    """Launches functions of tensors. `buckets` are the row counts that a pass may have."""

    def __init__(self, *, buckets: list[int] | None) -> None:
        growing = buckets is None or sorted(set(buckets)) == buckets
        if not growing or buckets == [] or (buckets and buckets[0] < 1):
            raise ValueError(
                f"runtime.buckets={buckets} must be increasing row counts, such as [1, 4, 16, 64]"
            )
        self.buckets = buckets

    @abstractmethod
    def wrap(self, fn: Callable[..., Any], key: Hashable) -> Callable[..., Any]:
        """A callable that computes `fn`; calls with one key see tensors of one set of shapes."""

    def bucket(self, rows: int, limit: int) -> int:
        """Rows to pad a pass of `rows` to: the next bucket that `limit` allows, else `rows`."""
        for size in self.buckets or ():
            if rows <= size <= limit:
                return size
        return rows


RUNTIMES: Registry[Runtime] = Registry("runtime", "specframe.runtime")
