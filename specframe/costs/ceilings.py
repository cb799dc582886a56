"""The measured limits of a device, and how near to them the passes of a target come.

This is the roofline model (Williams, Waterman and Patterson, 2009): a pass takes at least the time
that its bytes take to move and at least the time that its operations take to compute. A pass of one
row reads every weight for two operations each and is bound by the memory; each further row adds
operations and no weights, which is why a verify pass of several rows costs little more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from specframe.buffers.contiguous import Contiguous
from specframe.cache.base import CacheManager
from specframe.kernel.packed_linear import weight_bytes
from specframe.kernel.reordered_linear import ReorderedLinear
from specframe.runtime.base import Weights
from specframe.target.base import Target

_COPY_BYTES = {"cpu": 2**26, "cuda": 2**30}  # larger than any cache
_SIDE = {"cpu": 768, "cuda": 8192}  # of the square matrices that are multiplied
_REPEATS = 10


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The most that a device was seen to do in a second."""

    bytes_per_s: float  # of a copy: bytes read plus bytes written
    # Of a matrix product in the target's dtype, by torch or by the runtime's own kernel, whichever
    # is faster.
    operations_per_s: float

    def above(self, passes: Sequence[MeasuredPass]) -> Ceilings:
        """These ceilings, raised where a pass did better and so showed what the device can do."""
        moved = (1e3 * each.bytes / each.ms for each in passes)
        computed = (1e3 * each.operations / each.ms for each in passes)
        return Ceilings(
            bytes_per_s=max(self.bytes_per_s, *moved, 0.0),
            operations_per_s=max(self.operations_per_s, *computed, 0.0),
        )


@dataclass(frozen=True, kw_only=True)
class MeasuredPass:
    """What a forward pass has to move and to compute, and the time that it took."""

    rows: int
    context: int  # cached tokens
    bytes: float
    operations: float
    ms: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes

    def limit_ms(self, ceilings: Ceilings) -> float:
        """The least time that the device allows."""
        moved = self.bytes / ceilings.bytes_per_s
        return 1e3 * max(moved, self.operations / ceilings.operations_per_s)

    def as_dict(self, ceilings: Ceilings) -> dict[str, Any]:
        """Plain values under the names of the fields, with `intensity` and `limit_ms`."""
        return asdict(self) | {"intensity": self.intensity, "limit_ms": self.limit_ms(ceilings)}


def measure_ceilings(target: Target, weights: Weights, now: Callable[[], float]) -> Ceilings:
    """The best of a few copies and products, since a limit is what was reached.

    weights: what multiplies here. now: milliseconds, once the device is done.
    """
    kind = "cuda" if target.device.type == "cuda" else "cpu"
    source = torch.ones(_COPY_BYTES[kind], dtype=torch.uint8, device=target.device)
    goal = torch.empty_like(source)
    side = _SIDE[kind]
    left = torch.ones((side, side), dtype=target.dtype, device=target.device)
    copy_ms = _best_ms(lambda: goal.copy_(source), now)
    table = weights.pack_table(left)
    product_ms = min(_best_ms(lambda: left @ left, now), _best_ms(lambda: table(left), now))
    return Ceilings(
        bytes_per_s=2e3 * source.numel() / copy_ms,
        operations_per_s=2e3 * side**3 / product_ms,
    )


@dataclass(frozen=True, kw_only=True)
class PassWorkload:
    """What every pass of a target reads and multiplies."""

    parameters: int  # of its linear layers
    bytes: int  # of those parameters
    token_elements: float  # key and value elements of a cached token
    token_bytes: float  # of those elements
    queries: int  # query heads that read each key

    @classmethod
    def of(cls, target: Target, cache: CacheManager) -> PassWorkload | None:
        """The workload of a target whose cache holds tokens; None where it has no linear layers."""
        model = getattr(target, "model", None)
        if not isinstance(model, nn.Module) or not isinstance(cache, Contiguous):
            return None
        length = cache.lengths[0]
        if not length:
            return None
        linear = [
            each for each in model.modules() if isinstance(each, (nn.Linear, ReorderedLinear))
        ]
        keys = [tensor for layer in range(target.num_layers) for tensor in cache.committed(layer)]
        config: Any = model.config
        text = config.get_text_config()
        heads = getattr(text, "num_attention_heads", 1)
        return cls(
            parameters=sum(each.out_features * each.in_features for each in linear),
            bytes=sum(weight_bytes(each) for each in linear),
            token_elements=sum(each.numel() for each in keys) / length,
            token_bytes=sum(each.numel() * each.element_size() for each in keys) / length,
            queries=max(heads // (getattr(text, "num_key_value_heads", None) or heads), 1),
        )

    def of_pass(self, rows: int, context: int, ms: float) -> MeasuredPass:
        """One pass: each weight and each cached key is read once, whatever the number of rows."""
        attention = 2.0 * self.token_elements * self.queries * context
        return MeasuredPass(
            rows=rows,
            context=context,
            bytes=self.bytes + self.token_bytes * context,
            operations=rows * (2.0 * self.parameters + attention),
            ms=ms,
        )


def _best_ms(work: Callable[[], Any], now: Callable[[], float]) -> float:
    work()
    spent = []
    for _ in range(_REPEATS):
        start = now()
        work()
        spent.append(now() - start)
    return max(min(spent), 1e-6)
