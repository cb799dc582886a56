"""The contract of a cache: rows of a pass get slots, are written, then committed or forgotten.

A *column* is a place in a lane's text: committed column c holds the key of the token at position c.
Fresh columns follow, one for each slot that was reserved since the last commit. A *slot* is a
handle of memory that only the cache can read. Keys are stored rotated, which stays right when they
are moved, because the position of an accepted row equals the column that it is committed to.

The cache says what a row may see, and answers attention: `opened(rows)` is one pass over it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from specframe.registry import Registry
from specframe.types import Fresh, Rows, Tensors


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where keys and values lie in memory, for a kernel that runs all layers in one call."""

    keys: dict[int, Tensor]  # layer -> [1, heads, slots allocated, size]
    values: dict[int, Tensor]  # layer -> the same
    visible: Tensor  # [R, S] bool, contiguous; S is at most the slots allocated
    slots: Tensor  # [R] int64, contiguous


@dataclass(frozen=True, kw_only=True)
class PassForm:
    """One pass over a cache taken apart into tensors, for a launch that runs functions of tensors.

    `attached(inputs, buffers)` is the pass again, over other tensors of the same shapes.
    """

    inputs: Tensors  # new at every pass: slots, positions, what is visible
    buffers: Tensors  # keys, then values; they stay where they are, and the pass writes into them
    key: Hashable  # everything else that the pass depends on
    attached: Callable[[Tensors, Tensors], Opened]


class Opened(ABC):
    """One pass over a cache: its masks and positions are made once, whatever the layers.

    `layout` and `form` go past `dense`, `attend` and `visible` to the memory itself. A subclass
    that overrides one of those does not inherit them: it names its own, or its passes run layer by
    layer through what it overrides.
    """

    positions: Tensor  # [R] int64, absolute
    is_causal: bool = False  # the host knows that the rows are all there is, in order

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("layout", "form"):
            if overrides(cls, ("dense", "attend", "visible"), since=name):
                setattr(cls, name, getattr(Opened, name))

    @property
    def lanes(self) -> Sequence[Opened]:
        """The pass lane by lane, in the order of the rows; itself where it is of one lane."""
        return (self,)

    @abstractmethod
    def dense(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [1, heads, R, size] of a layer; both over all S slots that the pass
        may see, for code that brings its own attention. Values may have another size than keys."""

    @abstractmethod
    def visible(self, window: int | None = None) -> Tensor:
        """[R, S] bool: which of the slots of `dense` each row sees.

        With a window, a row sees only positions less than `window` before its own.
        """

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Write keys and values [kv heads, R, size]; what each row reads [heads, R, values' size].

        scale: of the dot products, None for 1 / sqrt(size). Queries and keys are rotated already.
        """
        all_keys, all_values = self.dense(layer, keys[None], values[None])
        masked = not self.is_causal or window is not None
        return functional.scaled_dot_product_attention(
            queries[None],
            all_keys,
            all_values,
            attn_mask=self.visible(window) if masked else None,
            is_causal=not masked,
            scale=scale,
            enable_gqa=queries.shape[0] != keys.shape[0],
        )[0]

    def layout(self, layers: Sequence[int], like: Tensor) -> Layout | None:
        """The memory of these layers, made if need be for keys like `like` [1, heads, any, size].

        None: there is no such layout, and the pass runs layer by layer.
        """
        return None

    def form(self, layers: Sequence[int], windows: Sequence[int | None]) -> PassForm | None:
        """The pass as a function of tensors, over layers that look through these windows.

        None: the pass is more than that, as the first one is, which makes the buffers.
        """
        return None


def overrides(cls: type, names: Sequence[str], *, since: str) -> bool:
    """Whether a class has one of these methods from a class that knows nothing of `since`, which
    it has from a class further up."""
    order = cls.__mro__

    def place(name: str) -> int:
        return next((i for i, base in enumerate(order) if name in vars(base)), len(order))

    return any(place(name) < place(since) for name in names)


class Tenancy:
    """Holds a lane from `open` until the lane is opened again or closed."""

    def __init__(self) -> None:
        self.ended = False


class CacheManager(ABC):
    """Keys and values of the lanes of one model; a cache of one lane has lane 0.

    Public members are 13; what only one reader asks for is a protocol beside that reader.
    """

    lossy: str | None = None  # why what is read is not what was written
    rollback: Literal["truncate", "none"] = "truncate"

    def __init__(self) -> None:
        self.lengths: list[int] = [0]  # committed columns of each lane
        self.extents: list[int] = [0]  # the same plus the columns reserved since the last commit
        # Positions that each lane's text may come to, said once it is opened; None: not said. A
        # target whose tables follow the length of a text fixes them by it.
        self.reach: list[int | None] = [None]

    def alone(self, lane: int) -> CacheManager:
        """A lane as a cache of one lane, which what follows one text alone may be given."""
        assert lane == 0, f"{type(self).__name__} holds one lane"
        return self

    @property
    @abstractmethod
    def capacity(self) -> int | None:
        """Most columns that a lane can have, valid once it is opened; None for no limit."""

    @abstractmethod
    def open(self, lane: int, *, columns: int, device: torch.device) -> Tenancy:
        """Forget what the lane held, and make room for `columns`, the most that it can ever need.

        Whoever held the lane before is told by `Tenancy.ended`.
        """

    @abstractmethod
    def close(self, lane: int) -> None:
        """Give the lane's memory back."""

    @abstractmethod
    def reserve(self, sizes: Sequence[int]) -> Fresh:
        """Fresh slots for sizes[b] rows of each lane b.

        Raises ConfigError past the capacity, before anything is written.
        """

    @abstractmethod
    def opened(self, rows: Rows) -> Opened:
        """One pass over rows whose slots are reserved."""

    @abstractmethod
    def commit(self, slots: Tensor, counts: Sequence[int], *, moved: Sequence[bool]) -> None:
        """The next counts[b] columns of lane b are what lies at its part of `slots`, in order; its
        other fresh slots are forgotten.

        moved[b] False: the host knows that they lie there already, so nothing is copied.
        """

    @abstractmethod
    def discard(self, lane: int) -> None:
        """Forget the fresh slots of a lane."""

    @abstractmethod
    def truncate(self, lane: int, length: int) -> None:
        """Keep the first `length` committed columns. Raises ValueError if there are fewer."""


CACHES: Registry[CacheManager] = Registry("cache", "specframe.cache")
