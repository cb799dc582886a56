"""A cache of fixed size, allocated once, for runtimes that want the same addresses every step."""

from __future__ import annotations

from typing import Annotated

from specframe.buffers.contiguous import Contiguous
from specframe.cache.base import CACHES
from specframe.errors import ConfigError
from specframe.registry import Range
from specframe.runtime.base import Launch


@CACHES.register("static")
class StaticCache(Contiguous):
    """Preallocated; the accepted path is compacted in place; attention sees whole blocks.

    capacity: slots, None for as many as the sequence can need (prompt, new tokens, one draft).
    block: attention's width is a multiple of it, so that few shapes occur.
    """

    def __init__(
        self,
        *,
        capacity: Annotated[int, Range(2, 10_000_000)] | None,
        block: Annotated[int, Range(1, 4096)],
        launch: Launch | None = None,
    ) -> None:
        super().__init__(launch)
        self._limit = capacity
        self._block = block
        self._slots = capacity or 0

    @property
    def width(self) -> int:
        blocks = -(-self.extents[0] // self._block)
        return min(blocks * self._block, self._slots)

    @property
    def allocated(self) -> int:
        return self._slots

    @property
    def capacity(self) -> int | None:
        return self._slots

    def _prepare(self, columns: int) -> None:
        slots = self._limit or columns
        if slots > self._slots or not self._keys:
            self._keys.clear()
            self._values.clear()
            self._slots = slots

    def _make_room(self, slots: int) -> None:
        if slots > self._slots:
            raise ConfigError(
                f"cache.capacity={self._slots} cannot hold {slots} slots; raise cache.capacity"
            )
