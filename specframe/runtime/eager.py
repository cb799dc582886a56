"""Every function runs as it is written."""

from __future__ import annotations

from specframe.runtime.base import RUNTIMES, Plain, Runtime, Weights


@RUNTIMES.register("eager")
class Eager(Runtime):
    """No capture, no compilation, torch's own products: the reference for every other runtime."""

    def __init__(self, *, buckets: list[int] | None) -> None:
        super().__init__(launch=Plain(buckets), weights=Weights())
