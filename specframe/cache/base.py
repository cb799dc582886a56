"""The contract of a cache manager: slots are reserved, written, then committed or discarded.

Slot i of the committed prefix holds the token at position i. A pass reserves slots above it; a
commit moves the accepted rows' keys down to the end of the prefix and forgets the rest. Keys are
stored rotated, which stays right because a row's position equals the slot it is committed to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from specframe.registry import Registry

Tensors = tuple[Tensor, ...]
Pass = Callable[[Tensors, Tensors], Tensors]  # (fed, held) -> outputs; see `Runtime.wrap`


class Keeper(Protocol):
    """Where a pass leaves the keys and values of its rows, and finds those of all that it sees."""

    length: int
    extent: int

    def update(
        self, layer: int, keys: Tensor, values: Tensor, slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [1, heads, R, size] at slots [R]; both over all slots seen."""


class Window:
    """The buffers of some layers, as one captured pass sees them: no state, nothing to grow.

    buffers: keys of each of `layers`, then values [1, heads, room, size]. width: slots seen, None
    for all of them.
    """

    def __init__(self, layers: Sequence[int], buffers: Sequence[Tensor], width: int | None) -> None:
        count = len(layers)
        self._keys = dict(zip(layers, buffers[:count], strict=True))
        self._values = dict(zip(layers, buffers[count:], strict=True))
        self.length, self.extent = 0, width or buffers[0].shape[2]
        self._whole = width is None

    def update(
        self, layer: int, keys: Tensor, values: Tensor, slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `Keeper.update`."""
        held = self._keys[layer], self._values[layer]
        for buffer, new in zip(held, (keys, values), strict=True):
            buffer.index_copy_(2, slots, new)
        if self._whole:  # a slice that may be the whole is two shapes to a compiler
            return held
        return held[0][:, :, : self.extent], held[1][:, :, : self.extent]


class Launcher(Protocol):
    """Launches functions of tensors (see `Runtime.wrap`)."""

    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        """A callable that computes `fn(fed, held)`."""

    def columns(self, needed: int, room: int) -> int:
        """Slots that a pass shall see, at least `needed`, of a cache that has allocated `room`."""


class CacheManager(ABC):
    """Keys and values of one sequence in one model, per layer as [1, heads, slots, head size].

    length: committed tokens (host integer; `length_tensor` is the same on the device).
    extent: length plus the slots reserved since the last commit.
    width: slots that `update` hands to attention; masks have this many columns.
    launcher: of the copies of a commit, by a runtime that records passes over these buffers; None:
    each copy by itself.
    """

    rollback: ClassVar[Literal["truncate", "none"]] = "truncate"
    supports_trees: ClassVar[bool] = True

    def __init__(self) -> None:
        self.length = 0
        self.extent = 0
        self.length_tensor = torch.zeros((), dtype=torch.long)
        self.positions = torch.zeros(0, dtype=torch.long)  # [capacity] position held by each slot
        self.holder: object = None  # the sequence whose keys these are
        self.launcher: Launcher | None = None
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    @property
    @abstractmethod
    def width(self) -> int:
        """Slots a pass sees, at least `extent`."""

    @property
    @abstractmethod
    def capacity(self) -> int | None:
        """Most slots there can be (valid after `reset`), None for no limit."""

    @abstractmethod
    def _room_for(self, slots: int) -> int:
        """Slots to allocate so that `slots` fit; raises ValueError past the capacity."""

    def reset(self, *, rows: int, device: torch.device) -> None:
        """Forget everything; `rows` is the most slots the coming sequence can need."""
        used = self.extent
        self.length = self.extent = 0
        self.length_tensor = torch.zeros((), dtype=torch.long, device=device)
        self.positions = torch.zeros(0, dtype=torch.long, device=device)
        self._prepare(rows)
        for held in (*self._keys.values(), *self._values.values()):
            # A pass that failed may have left NaN, and a masked slot still counts as 0 * NaN.
            held[:, :, :used] = 0

    @abstractmethod
    def _prepare(self, rows: int) -> None:
        """Drop or keep the buffers, given the need announced by `reset`."""

    def reserve(self, rows: int) -> Tensor:
        """[rows] int64 fresh slots. Raises ValueError past the capacity, before any write."""
        start, stop = self.extent, self.extent + rows
        room = self._room_for(stop)
        self.extent = stop
        if room > self.positions.shape[0]:
            grown = torch.arange(room, device=self.positions.device)
            grown[: self.positions.shape[0]] = self.positions
            self.positions = grown
        return torch.arange(start, self.extent, device=self.positions.device)

    def update(
        self, layer: int, keys: Tensor, values: Tensor, slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [1, heads, R, size] at slots [R]; both over `width` slots."""
        held_keys, held_values = self.buffers(layer, keys)
        held_keys.index_copy_(2, slots, keys)
        held_values.index_copy_(2, slots, values)
        width = self.width
        return held_keys[:, :, :width], held_values[:, :, :width]

    def buffers(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer over all slots allocated, at least `width` of them.

        like: [1, heads, any, size] of the keys to come, which a layer's first buffers are made for.
        """
        if layer not in self._keys:
            self._keys[layer] = self._allocate(like)
            self._values[layer] = self._allocate(like)
        elif self._keys[layer].shape[2] < self.width:
            self._keys[layer] = self._grow(self._keys[layer])
            self._values[layer] = self._grow(self._values[layer])
        return self._keys[layer], self._values[layer]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that have buffers."""
        return tuple(self._keys)

    def held(self, layers: Sequence[int]) -> tuple[Tensor, ...] | None:
        """Keys of each layer, then values, over all slots allocated (at least `width`); None where
        a layer has none yet, since its first pass makes them."""
        if any(layer not in self._keys for layer in layers):
            return None
        pairs = [self.buffers(layer, self._keys[layer]) for layer in layers]
        return (*(keys for keys, _ in pairs), *(values for _, values in pairs))

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Committed keys and values of a layer, [1, heads, length, size] (views)."""
        return self._keys[layer][:, :, : self.length], self._values[layer][:, :, : self.length]

    def _allocate(self, like: Tensor) -> Tensor:
        batch, heads, _, size = like.shape
        return like.new_zeros((batch, heads, self._room_for(self.extent), size))

    def _grow(self, held: Tensor) -> Tensor:
        grown = self._allocate(held)
        grown[:, :, : held.shape[2]] = held
        return grown

    def commit(self, slots: Tensor, count: int, *, moved: bool = True) -> None:
        """Append the keys at slots[:count] to the committed prefix and forget the other slots.

        moved=False: the host knows that they already lie there in order, so nothing is copied.
        """
        stop = self.length + count
        if moved and count and self.launcher is not None:
            self._move_at_once(slots, count, self.launcher)
        elif moved and count:
            source = slots[:count]
            for held in (*self._keys.values(), *self._values.values()):
                # index_select materialises first: source and destination may overlap.
                held[:, :, self.length : stop] = held.index_select(2, source)
        self.positions[self.length : stop] = torch.arange(
            self.length, stop, device=self.positions.device
        )
        self._set_length(stop)

    def _move_at_once(self, slots: Tensor, count: int, launcher: Launcher) -> None:
        """The copies as one function of fixed shapes, for the next power of two of `count`."""
        size = 1 << (count - 1).bit_length()
        # What is too many repeats the last copy, which changes nothing.
        order = torch.arange(size, device=slots.device).clamp_max(count - 1)
        fed = (slots.index_select(0, order), order + self.length)
        held = (*self._keys.values(), *self._values.values())
        shapes = tuple(one.shape for one in held)
        launcher.wrap(_move, (_move, size, shapes))(fed, held)

    def discard(self) -> None:
        """Forget all reserved slots."""
        self.extent = self.length

    def truncate(self, length: int) -> None:
        """Keep the first `length` committed tokens. Raises ValueError if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self._set_length(length)

    def _set_length(self, length: int) -> None:
        self.length = self.extent = length
        self.length_tensor.fill_(length)


def _move(fed: Tensors, held: Tensors) -> Tensors:
    """Copy slots fed[0] [n] of all buffers to slots fed[1] [n]."""
    source, to = fed
    for buffer in held:
        # index_select materialises first: source and destination may overlap.
        buffer.index_copy_(2, to, buffer.index_select(2, source))
    return ()


CACHES: Registry[CacheManager] = Registry("cache", "specframe.cache")
