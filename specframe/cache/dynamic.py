"""A cache that grows as the text does."""

from __future__ import annotations

from specframe.cache.base import CACHES, CacheManager

_FIRST = 128  # slots of the first allocation; each later one doubles


@CACHES.register("dynamic")
class DynamicCache(CacheManager):
    """Grows by doubling, so that n tokens cost O(n) copies in all. No limit but memory.

    A text's memory is given back before the next one, but for a runtime that records passes: it
    finds its buffers where they were.
    """

    def __init__(self) -> None:
        super().__init__()
        self._room = _FIRST

    @property
    def width(self) -> int:
        return self.extent

    @property
    def capacity(self) -> int | None:
        return None

    def _prepare(self, rows: int) -> None:
        if self.launcher is None or not self._keys:
            self._room = _FIRST
            self._keys.clear()
            self._values.clear()

    def _room_for(self, slots: int) -> int:
        while self._room < slots:
            self._room *= 2
        return self._room
