"""A cache of fixed size, allocated once, for runtimes that want the same addresses every step."""

from __future__ import annotations

from typing import Annotated

from specframe.cache.base import CACHES, CacheManager
from specframe.errors import ConfigError
from specframe.registry import Range


@CACHES.register("static")
class StaticCache(CacheManager):
    """Preallocated; the accepted path is compacted in place; attention sees whole blocks.

    capacity: slots, None for as many as the sequence can need (prompt, new tokens, one draft).
    block: attention's width is a multiple of it, so that few shapes occur.
    """

    def __init__(
        self,
        *,
        capacity: Annotated[int, Range(2, 10_000_000)] | None,
        block: Annotated[int, Range(1, 4096)],
    ) -> None:
        super().__init__()
        self._limit = capacity
        self._block = block
        self._slots = capacity or 0

    @property
    def width(self) -> int:
        blocks = -(-self.extent // self._block)
        return min(blocks * self._block, self._slots)

    @property
    def capacity(self) -> int | None:
        return self._slots

    def _prepare(self, rows: int) -> None:
        slots = self._limit or rows
        if slots > self._slots or not self._keys:
            self._keys.clear()
            self._values.clear()
            self._slots = slots

    def _room_for(self, slots: int) -> int:
        if slots > self._slots:
            raise ConfigError(
                f"cache.capacity={self._slots} cannot hold {slots} slots; raise cache.capacity"
            )
        return self._slots
