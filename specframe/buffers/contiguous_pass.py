"""One pass over contiguous buffers, which are made and grown as its layers ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specframe.buffers.tensor_passes import BufferPass, visible_columns, write
from specframe.cache.base import Layout, Opened, PassForm
from specframe.types import Rows, Tensors


class LayerBuffers(Protocol):
    """What a pass asks of the cache that holds the buffers."""

    lengths: list[int]

    @property
    def width(self) -> int:
        """Slots that a pass sees, at least the extent."""

    @property
    def one_width(self) -> bool:
        """Whether a wrapped pass serves one width only."""

    def pass_width(self) -> int:
        """Slots that the next pass sees, as many as the launch wants."""

    def positions(self, width: int) -> Tensor:
        """[width] the position that each slot holds."""

    def layer_buffers(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer over all slots allocated."""

    def buffers(self, layers: Sequence[int]) -> Tensors | None:
        """Keys of each layer, then values; None where a layer has none yet."""


class ContiguousPass(Opened):
    """A pass over buffers that the cache makes and grows as they are asked for."""

    def __init__(self, cache: LayerBuffers, rows: Rows) -> None:
        count, length = rows.slots.shape[0], cache.lengths[0]
        self.positions = rows.positions
        # The model's own mask stands for `visible`, unless a subclass sees something else.
        own = type(self).visible is ContiguousPass.visible
        self.is_causal = own and rows.sees is None and length == 0 and cache.width == count
        self._cache, self._rows, self._length = cache, rows, length
        self._width = cache.width if self.is_causal else cache.pass_width()
        self._visible: dict[int | None, Tensor] = {}

    def dense(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        buffers = self._cache.layer_buffers(layer, keys, values)
        return write(buffers, keys, values, self._rows.slots, self._width)

    def visible(self, window: int | None = None) -> Tensor:
        if window not in self._visible:
            seen = visible_columns(self._rows, base=self._length, width=self._width)
            if window is not None:
                places = self._cache.positions(self._width)
                seen = seen & (self.positions[:, None] - places < window)
            self._visible[window] = seen
        return self._visible[window]

    def layout(self, layers: Sequence[int], like: Tensor) -> Layout:
        pairs = {layer: self._cache.layer_buffers(layer, like, like) for layer in layers}
        return Layout(
            keys={layer: keys for layer, (keys, _) in pairs.items()},
            values={layer: values for layer, (_, values) in pairs.items()},
            visible=self.visible().contiguous(),
            slots=self._rows.slots.contiguous(),
        )

    def form(self, layers: Sequence[int], windows: Sequence[int | None]) -> PassForm | None:
        buffers = None if self.is_causal else self._cache.buffers(layers)
        if buffers is None:
            return None
        width = self._width if self._cache.one_width else None
        seen = tuple(self.visible(window) for window in windows)

        def attached(inputs: Tensors, buffers: Tensors) -> Opened:
            slots, positions, *masks = inputs
            return BufferPass(
                slots=slots,
                positions=positions,
                masks=dict(zip(windows, masks, strict=True)),
                buffers=buffers,
                layers=tuple(layers),
                width=width,
            )

        return PassForm(
            inputs=(self._rows.slots, self.positions, *seen),
            buffers=buffers,
            key=(tuple(layers), tuple(windows), width),
            attached=attached,
        )
