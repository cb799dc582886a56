"""The contract of a runtime: how the functions of a pass are launched, and on which weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from specframe.cache.base import CacheManager, Pass, Tensors
from specframe.registry import Registry
from specframe.types import Rows

__all__ = ["RUNTIMES", "Pass", "Runtime", "Tensors", "Trunk"]


class Trunk(ABC):
    """Blocks of a model, run without the model's own code."""

    @abstractmethod
    def __call__(
        self,
        hidden: Tensor,
        rows: Rows,
        cache: CacheManager,
        *,
        layers: tuple[int, int],
        skip: frozenset[str] = frozenset(),
        taps: Collection[str] = (),
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Blocks [a, b) = layers over hidden [R, H], which is left as it is; keys are written.

        skip: sub-layers to leave out. Returns what leaves the last block [R, H], and those of taps
        that are `resid:i`.
        """


class Runtime(ABC):
    """Launches functions of tensors. `buckets` are the row counts that a pass may have.

    forms: what functions that it records say beside their tensors, by key.
    unlike: first runs of a pass whose time is not that of the runs to come, at least one.
    one_width: whether a pass serves one count of slots seen, so that its key says which.
    prepares: whether passes are made ready before the first answer, in `prepared_s` seconds so far.
    kernels: what multiplies the target's weights, by their shape, where the runtime chose that.
    """

    unlike: int = 1
    one_width: ClassVar[bool] = True
    prepares: ClassVar[bool] = False
    prepared_s: float = 0.0

    def __init__(self, *, buckets: list[int] | None) -> None:
        growing = buckets is None or sorted(set(buckets)) == buckets
        if not growing or buckets == [] or (buckets and buckets[0] < 1):
            raise ValueError(
                f"runtime.buckets={buckets} must be increasing row counts, such as [1, 4, 16, 64]"
            )
        self.buckets = buckets
        self.kernels: dict[str, str] = {}
        self.forms: dict[Hashable, Any] = {}

    @property
    def lossy(self) -> str | None:
        """Why a target's text may not be that of the weights as they were loaded; None: it is."""
        return None

    @abstractmethod
    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        """A callable that computes `fn(fed, held)`; calls with one key see one set of shapes.

        fed: tensors whose values are new at every call. held: buffers that stay where they are
        (keys and values), into which fn may write. Whatever else fn reads is fixed by its key, so
        that any fn of a key can stand for the others: the key names whose pass it is, too.
        """

    @property
    def recording(self) -> Runtime | None:
        """This, if it records what it wraps: then buffers are to stay where they are, and what is
        no pass (accept, commit) is to go through `wrap` too, as each launch is dear."""
        return None

    def forget(self) -> None:
        """Drop what was recorded: it keeps the parts of an earlier engine alive."""

    def columns(self, needed: int, room: int) -> int:
        """Slots that a pass shall see, at least `needed`, of a cache that has allocated `room`."""
        return needed

    def prepare(self, rehearse: Callable[[int], None], *, most: int, limit: int) -> None:
        """Make ready what will be run: `rehearse(rows)` runs the passes of a draft of so many rows.

        most: rows that a draft can have; limit: those that it may be padded to.
        """

    def adopt(self, model: nn.Module) -> Trunk | None:
        """Lay a freshly loaded target's weights out anew, if that is of use; None: its own code
        runs its blocks."""
        return None

    def drafting(self) -> Runtime:
        """The runtime of a draft model: rounding its weights costs drafts, never text."""
        return self

    def draft(self, net: nn.Module, *, tables: Collection[nn.Module | None] = ()) -> None:
        """Lay a draft head's weights out anew, but for its output layers, which `table` reads.

        Rounding them costs drafts, never text.
        """

    def table(self, weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x [..., k] -> logits [..., rows] of a draft head's output rows [rows, k]."""
        return lambda x: functional.linear(x, weight, bias)

    def bucket(self, rows: int, limit: int) -> int:
        """Rows to pad a pass of `rows` to: the next bucket that `limit` allows, else `rows`."""
        for size in self.buckets or ():
            if rows <= size <= limit:
                return size
        return rows


RUNTIMES: Registry[Runtime] = Registry("runtime", "specframe.runtime")
