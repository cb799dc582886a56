"""The contract of a runtime: how functions of a pass are launched, and what multiplies the weights.

A word of the axis composes one of each: `runtime=packed` launches functions as they are written,
on weights that are laid out anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable

from torch import Tensor, nn
from torch.nn import functional

from specframe.cache.base import Opened
from specframe.registry import Registry
from specframe.types import Tensors

Pass = Callable[[Tensors, Tensors], Tensors]  # (inputs, buffers) -> outputs; see `Launch.wrap`


class Launch(ABC):
    """Launches functions of tensors of fixed shapes.

    buckets: row counts that a pass is padded to, increasing; None pads nothing.
    """

    def __init__(self, buckets: list[int] | None = None) -> None:
        increasing = buckets is None or sorted(set(buckets)) == buckets
        if not increasing or buckets == [] or (buckets and buckets[0] < 1):
            raise ValueError(
                f"runtime.buckets={buckets} must be increasing row counts, such as [1, 4, 16, 64]"
            )
        self.buckets = buckets

    @abstractmethod
    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        """A callable that computes `fn(inputs, buffers)`; calls with one key see one set of shapes.

        inputs: tensors whose values are new at every call. buffers: tensors that stay where they
        are (keys and values), into which fn may write. Whatever else fn reads is fixed by its key,
        so that any fn of a key can stand for the others: the key names whose pass it is, too.
        """

    def bucket(self, rows: int, limit: int) -> int:
        """Rows to pad a pass of `rows` to: the next bucket that `limit` allows, else `rows`."""
        for size in self.buckets or ():
            if rows <= size <= limit:
                return size
        return rows


class Plain(Launch):
    """Runs every function as it is written."""

    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        return fn


class Trunk(ABC):
    """Blocks of a model, run without the model's own code."""

    @abstractmethod
    def __call__(
        self,
        hidden: Tensor,
        opened: Opened,
        *,
        layers: tuple[int, int],
        skip: frozenset[str] = frozenset(),
        taps: Collection[str] = (),
    ) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Blocks [a, b) = layers over hidden [R, H], which is left as it is; keys are written.

        skip: sub-layers to leave out. Returns what leaves the last block [R, H], and those of taps
        that are `resid:i`; None where the cache has no memory layout that the trunk can read.
        """


class Weights:
    """What multiplies the weights of targets, draft models and draft heads: here torch itself."""

    def __init__(self) -> None:
        self.kernels: dict[str, str] = {}  # what multiplies the target's weights, by their shape

    @property
    def lossy(self) -> str | None:
        """Why a target's text may not be that of the weights as they were loaded; None: it is."""
        return None

    def adopt(self, model: nn.Module) -> Trunk | None:
        """Lay a freshly loaded target's weights out anew, if that is of use.

        None: the model's own code runs its blocks.
        """
        return None

    def for_drafts(self) -> Weights:
        """The weights of a draft model, which may be rounded: that costs drafts, never text."""
        return self

    def pack_head(self, net: nn.Module, *, tables: Collection[nn.Module | None] = ()) -> None:
        """Lay a draft head's weights out anew, except its output layers, which `pack_table` reads.

        Rounding them costs drafts, never text.
        """

    def pack_table(self, weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x [..., k] -> logits [..., rows] of a draft head's output rows [rows, k]."""
        return lambda x: functional.linear(x, weight, bias)


class Runtime:
    """One launch and one weights. A word of the axis is a subclass that composes them."""

    def __init__(self, *, launch: Launch, weights: Weights) -> None:
        self.launch = launch
        self.weights = weights

    def for_drafts(self) -> Runtime:
        """The runtime of a draft model: the same launch, on weights for drafts."""
        return Runtime(launch=self.launch, weights=self.weights.for_drafts())


RUNTIMES: Registry[Runtime] = Registry("runtime", "specframe.runtime")

__all__ = ["RUNTIMES", "Launch", "Pass", "Plain", "Runtime", "Tensors", "Trunk", "Weights"]
