"""One lane in one buffer a layer: slot i is column i."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specframe.buffers.contiguous_pass import ContiguousPass
from specframe.buffers.launches import fixed_addresses, wide_passes
from specframe.buffers.tensor_passes import FixedBuffers
from specframe.cache.base import CacheManager, Opened, Tenancy, overrides
from specframe.runtime.base import Launch
from specframe.types import Fresh, Rows, Tensors


class Contiguous(CacheManager):
    """Keys and values of one lane, per layer as [1, heads, slots, size]; fresh slots lie behind the
    committed ones, and a commit moves the accepted rows down.

    launch: how passes and copies are launched; None: as they are written.
    A subclass whose passes are its own (`opened`) has no `fixed` form unless it names one.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if overrides(cls, ("opened", "layer_buffers"), since="fixed"):
            cls.fixed = _no_form  # type: ignore[method-assign, assignment]

    def __init__(self, launch: Launch | None = None) -> None:
        super().__init__()
        self._launch = launch
        self._wide, self._fixed = wide_passes(launch), fixed_addresses(launch)
        self._device = torch.device("cpu")
        self._tenancy = Tenancy()
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        # (slots, positions) of the passes since the last commit, for windows of attention.
        self._fresh: list[tuple[Tensor, Tensor]] = []

    @property
    @abstractmethod
    def width(self) -> int:
        """Slots that a pass sees, at least the extent."""

    @property
    @abstractmethod
    def allocated(self) -> int:
        """Slots that the buffers have, or will have."""

    @abstractmethod
    def _make_room(self, slots: int) -> None:
        """See to it that `allocated` is at least `slots`. Raises ConfigError past the capacity."""

    @abstractmethod
    def _prepare(self, columns: int) -> None:
        """Drop or keep the buffers, given the need that `open` announces."""

    @property
    def captured(self) -> bool:
        """Whether the launch captures, so that buffers must stay where they are."""
        return self._fixed is not None and self._fixed.captures

    def open(self, lane: int, *, columns: int, device: torch.device) -> Tenancy:
        _only(lane)
        used = self.extents[0]
        self.lengths[0] = self.extents[0] = 0
        self.reach[0] = None
        self._device = device
        self._fresh.clear()
        self._prepare(columns)
        for buffer in (*self._keys.values(), *self._values.values()):
            # A pass that failed may have left NaN, and a masked slot still counts as 0 * NaN.
            buffer[:, :, :used] = 0
        self._tenancy.ended = True
        self._tenancy = Tenancy()
        return self._tenancy

    def close(self, lane: int) -> None:
        _only(lane)
        self.lengths[0] = self.extents[0] = 0
        self._keys.clear()
        self._values.clear()
        self._fresh.clear()
        self._tenancy.ended = True

    def reserve(self, sizes: Sequence[int]) -> Fresh:
        (count,) = sizes
        start, length = self.extents[0], self.lengths[0]
        self._make_room(start + count)
        self.extents[0] = start + count
        slots = torch.arange(start, start + count, device=self._device)
        return Fresh(slots=slots, columns=slots - length, extent=start + count - length)

    def opened(self, rows: Rows) -> Opened:
        self._fresh.append((rows.slots, rows.positions))
        return ContiguousPass(self, rows)

    def commit(self, slots: Tensor, counts: Sequence[int], *, moved: Sequence[bool]) -> None:
        (count,), (is_moved,) = counts, moved
        start, stop = self.lengths[0], self.lengths[0] + count
        if is_moved and count and self.captured:
            self._move_captured(slots, count)
        elif is_moved and count:
            source = slots[:count]
            for buffer in (*self._keys.values(), *self._values.values()):
                # index_select materialises first: source and destination may overlap.
                buffer[:, :, start:stop] = buffer.index_select(2, source)
        self._set_length(stop)

    def _move_captured(self, slots: Tensor, count: int) -> None:
        """The copies as one function of fixed shapes, for the next power of two of `count`."""
        assert self._launch is not None
        size = 1 << (count - 1).bit_length()
        # What is too many repeats the last copy, which changes nothing.
        order = torch.arange(size, device=slots.device).clamp_max(count - 1)
        inputs = (slots.index_select(0, order), order + self.lengths[0])
        buffers = (*self._keys.values(), *self._values.values())
        shapes = tuple(buffer.shape for buffer in buffers)
        self._launch.wrap(_move, (_move, size, shapes))(inputs, buffers)

    def discard(self, lane: int) -> None:
        _only(lane)
        self._set_length(self.lengths[0])

    def truncate(self, lane: int, length: int) -> None:
        _only(lane)
        if not 0 <= length <= self.lengths[0]:
            raise ValueError(f"cannot truncate a cache of {self.lengths[0]} tokens to {length}")
        self._set_length(length)

    def _set_length(self, length: int) -> None:
        self.lengths[0] = self.extents[0] = length
        self._fresh.clear()

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that have buffers."""
        return tuple(self._keys)

    def committed(self, layer: int) -> tuple[Tensor, Tensor]:
        """Committed keys and values of a layer, [1, heads, length, size] (views)."""
        length = self.lengths[0]
        return self._keys[layer][:, :, :length], self._values[layer][:, :, :length]

    def layer_buffers(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer over all slots allocated.

        keys, values: [1, heads, any, size] like those to come, which a layer's first buffers are
        made for. Their sizes may differ, as in latent attention.
        """
        if layer not in self._keys:
            self._keys[layer] = self._allocate(keys)
            self._values[layer] = self._allocate(values)
        elif self._keys[layer].shape[2] < self.allocated:
            self._keys[layer] = self._grown(self._keys[layer])
            self._values[layer] = self._grown(self._values[layer])
        return self._keys[layer], self._values[layer]

    def buffers(self, layers: Sequence[int]) -> Tensors | None:
        """Keys of each layer, then values, over all slots allocated; None where a layer has none
        yet, since its first pass makes them."""
        if not layers or any(layer not in self._keys for layer in layers):
            return None
        pairs = [
            self.layer_buffers(layer, self._keys[layer], self._values[layer]) for layer in layers
        ]
        return (*(keys for keys, _ in pairs), *(values for _, values in pairs))

    def pass_width(self) -> int:
        """Slots that the next pass sees, as many as the launch wants."""
        if self._wide is not None:
            return self._wide.columns(self.width, self.allocated)
        return self.width

    @property
    def one_width(self) -> bool:
        """Whether a wrapped pass serves one width only."""
        return self._wide is None or self._wide.one_width

    def positions(self, width: int) -> Tensor:
        """[width] the position that each slot holds."""
        positions = torch.arange(width, device=self._device)
        for slots, given in self._fresh:
            positions.index_copy_(0, slots, given)
        return positions

    def fixed(self, most: int) -> FixedBuffers | None:
        """The cache as tensors, for a function that reserves at most `most` slots and commits none;
        None where no pass has made the buffers yet."""
        (length,) = self.lengths
        self.reserve([most])
        layers = self.layers
        buffers, width = self.buffers(layers), self.pass_width()
        self.discard(0)
        if buffers is None:
            return None
        base = torch.full((), length, dtype=torch.long, device=self._device)
        return FixedBuffers(base=base, buffers=buffers, layers=layers, width=width)

    def _allocate(self, like: Tensor) -> Tensor:
        batch, heads, _, size = like.shape
        return like.new_zeros((batch, heads, self.allocated, size))

    def _grown(self, buffer: Tensor) -> Tensor:
        grown = self._allocate(buffer)
        grown[:, :, : buffer.shape[2]] = buffer
        return grown


def _no_form(cache: Contiguous, most: int) -> FixedBuffers | None:
    """`fixed` of a cache whose passes are not those of the buffers."""
    return None


def _only(lane: int) -> None:
    assert lane == 0, "contiguous buffers hold one lane"


def _move(inputs: Tensors, buffers: Tensors) -> Tensors:
    """Copy the slots inputs[0] to the slots inputs[1], in every buffer."""
    source, target = inputs
    for buffer in buffers:
        buffer.index_copy_(2, target, buffer.index_select(2, source))
    return ()
