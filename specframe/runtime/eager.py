"""Every function runs as it is written."""

from __future__ import annotations

from collections.abc import Hashable

from specframe.runtime.base import RUNTIMES, Pass, Runtime


@RUNTIMES.register("eager")
class Eager(Runtime):
    """No capture, no compilation: the reference for every other runtime."""

    def __init__(self, *, buckets: list[int] | None) -> None:
        super().__init__(buckets=buckets)

    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        return fn
