"""A cache that grows as the text does."""

from __future__ import annotations

from specframe.buffers.contiguous import Contiguous
from specframe.cache.base import CACHES
from specframe.runtime.base import Launch

_FIRST = 128  # slots of the first allocation; each later one doubles


@CACHES.register("dynamic")
class DynamicCache(Contiguous):
    """Grows by doubling, so that n tokens cost O(n) copies in all. No limit but memory.

    The memory of a text is given back before the next one, except under a launch that captures,
    which must find its buffers where they were.
    """

    def __init__(self, *, launch: Launch | None = None) -> None:
        super().__init__(launch)
        self._room = _FIRST

    @property
    def width(self) -> int:
        return self.extents[0]

    @property
    def allocated(self) -> int:
        return self._room

    @property
    def capacity(self) -> int | None:
        return None

    def _prepare(self, columns: int) -> None:
        if not self.captured or not self._keys:
            self._room = _FIRST
            self._keys.clear()
            self._values.clear()

    def _make_room(self, slots: int) -> None:
        while self._room < slots:
            self._room *= 2
