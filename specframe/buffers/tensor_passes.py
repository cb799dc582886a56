"""Passes over given buffers: functions of tensors, so that a launch can capture or compile them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.cache.base import Opened
from specframe.types import Fresh, Rows, Tensors


def write(
    buffers: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, slots: Tensor, width: int | None
) -> tuple[Tensor, Tensor]:
    """Write keys and values [1, heads, R, size] at slots [R]; both buffers over `width` slots.

    width None: over all of them. A slice that may be the whole is two shapes to a compiler.
    """
    for buffer, new in zip(buffers, (keys, values), strict=True):
        buffer.index_copy_(2, slots, new)
    if width is None:
        return buffers
    return buffers[0][:, :, :width], buffers[1][:, :, :width]


def visible_columns(rows: Rows, *, base: int | Tensor, width: int) -> Tensor:
    """[R, width] bool: the columns that rows see, where slot i is column i.

    base: committed columns, [] where it must be no host integer; fresh columns follow it.
    """
    columns = torch.arange(width, device=rows.slots.device)
    seen = columns < rows.prefix[:, None]
    if rows.sees is None:
        behind = columns >= rows.slots[:1]
        return seen | (behind & (columns <= rows.slots[:, None]))
    fresh = rows.sees.shape[1]
    if isinstance(base, Tensor):
        return seen.index_copy_(1, base + columns[:fresh], rows.sees)
    seen[:, base : base + fresh] = rows.sees
    return seen


class BufferPass(Opened):
    """A pass over the buffers of some layers: nothing is made or grown.

    masks: what each row sees, [R, S] bool, by window of attention. width: slots seen, None for all.
    """

    def __init__(
        self,
        *,
        slots: Tensor,
        positions: Tensor,
        masks: dict[int | None, Tensor],
        buffers: Tensors,
        layers: Sequence[int],
        width: int | None,
    ) -> None:
        count = len(layers)
        self.positions = positions
        self._slots, self._masks, self._width = slots, masks, width
        self._keys = dict(zip(layers, buffers[:count], strict=True))
        self._values = dict(zip(layers, buffers[count:], strict=True))

    def dense(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return write(
            (self._keys[layer], self._values[layer]), keys, values, self._slots, self._width
        )

    def visible(self, window: int | None = None) -> Tensor:
        return self._masks[window]


@dataclass(kw_only=True)
class FixedBuffers:
    """A cache as tensors, for a captured function that feeds a draft and commits nothing."""

    base: Tensor  # [] committed columns
    buffers: Tensors  # keys of each layer, then values
    layers: tuple[int, ...]
    width: int  # slots that a pass sees

    def over(self, base: Tensor, buffers: Tensors) -> Scratch:
        """Room for fresh columns behind `base` of these buffers."""
        return Scratch(base=base, buffers=buffers, layers=self.layers, width=self.width)


class Scratch:
    """Fresh columns of a cache inside a captured function: reserved, written, never committed."""

    def __init__(
        self, *, base: Tensor, buffers: Tensors, layers: tuple[int, ...], width: int
    ) -> None:
        self.base = base
        self._buffers, self._layers, self._width = buffers, layers, width
        self._columns = torch.arange(width, device=base.device)
        self._used = 0

    def reserve(self, sizes: Sequence[int]) -> Fresh:
        """As `CacheManager.reserve`."""
        (count,) = sizes
        columns = self._columns[self._used : self._used + count]
        self._used += count
        return Fresh(slots=self.base + columns, columns=columns, extent=self._used)

    def opened(self, rows: Rows) -> Opened:
        """As `CacheManager.opened`."""
        return BufferPass(
            slots=rows.slots,
            positions=rows.positions,
            masks={None: visible_columns(rows, base=self.base, width=self._width)},
            buffers=self._buffers,
            layers=self._layers,
            width=self._width,
        )
