"""The measured limits of a device, and how near to them the passes of a target come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from specframe.cache.base import CacheManager
from specframe.kernel.packed_linear import weight_bytes
from specframe.kernel.reordered_linear import ReorderedLinear
from specframe.target.base import Target

_COPY_BYTES = {"cpu": 2**26, "cuda": 2**30}  # larger than any cache
_SIDE = {"cpu": 768, "cuda": 8192}  # of the square matrices that are multiplied
_TIMES = 10


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """bytes_per_s of a copy (read and written ones), operations_per_s of a matrix product in the
    target's dtype, by torch or by the runtime's own kernel, whichever is faster."""

    bytes_per_s: float
    operations_per_s: float

    def above(self, passes: Sequence[MeasuredPass]) -> Ceilings:
        """These, raised where a pass did better: then it showed more of what the device can do."""
        moved = (1e3 * one.bytes / one.ms for one in passes)
        computed = (1e3 * one.operations / one.ms for one in passes)
        return Ceilings(
            bytes_per_s=max(self.bytes_per_s, *moved, 0.0),
            operations_per_s=max(self.operations_per_s, *computed, 0.0),
        )


@dataclass(frozen=True, kw_only=True)
class MeasuredPass:
    """What a forward pass of `rows` rows has to move and to compute, and the ms that it took."""

    rows: int
    context: int
    bytes: float
    operations: float
    ms: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes

    def limit_ms(self, ceilings: Ceilings) -> float:
        """The least that the device allows."""
        moved = self.bytes / ceilings.bytes_per_s
        return 1e3 * max(moved, self.operations / ceilings.operations_per_s)

    def as_dict(self, ceilings: Ceilings) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"intensity": self.intensity, "limit_ms": self.limit_ms(ceilings)}


def measure_ceilings(target: Target, now: Callable[[], float]) -> Ceilings:
    """The best of a few copies and products, since a limit is what was reached.

    now: milliseconds, once the device is done.
    """
    kind = "cuda" if target.device.type == "cuda" else "cpu"
    source = torch.ones(_COPY_BYTES[kind], dtype=torch.uint8, device=target.device)
    goal = torch.empty_like(source)
    side = _SIDE[kind]
    left = torch.ones((side, side), dtype=target.dtype, device=target.device)
    copy_ms = _best(lambda: goal.copy_(source), now)
    table = target.runtime.table(left)
    product_ms = min(_best(lambda: left @ left, now), _best(lambda: table(left), now))
    return Ceilings(
        bytes_per_s=2e3 * source.numel() / copy_ms,
        operations_per_s=2e3 * side**3 / product_ms,
    )


@dataclass(frozen=True, kw_only=True)
class PassWorkload:
    """What a pass of a target reads and multiplies: parameters of its linear layers and their
    bytes; key and value elements of a token, their bytes, and the queries that read each."""

    parameters: int
    bytes: int
    token_elements: float
    token_bytes: float
    queries: int

    @classmethod
    def of(cls, target: Target, cache: CacheManager) -> PassWorkload | None:
        """Of a target whose cache holds tokens; None where it has no linear layers."""
        model = getattr(target, "model", None)
        if not isinstance(model, nn.Module) or not cache.length:
            return None
        linear = [one for one in model.modules() if isinstance(one, (nn.Linear, ReorderedLinear))]
        keys = [tensor for layer in range(target.num_layers) for tensor in cache.read(layer)]
        config: Any = model.config
        text = config.get_text_config()
        heads = getattr(text, "num_attention_heads", 1)
        return cls(
            parameters=sum(one.out_features * one.in_features for one in linear),
            bytes=sum(weight_bytes(one) for one in linear),
            token_elements=sum(one.numel() for one in keys) / cache.length,
            token_bytes=sum(one.numel() * one.element_size() for one in keys) / cache.length,
            queries=max(heads // (getattr(text, "num_key_value_heads", None) or heads), 1),
        )

    def of_pass(self, rows: int, context: int, ms: float) -> MeasuredPass:
        """One pass: each weight and each held key is read once, whatever the rows."""
        attention = 2.0 * self.token_elements * self.queries * context
        return MeasuredPass(
            rows=rows,
            context=context,
            bytes=self.bytes + self.token_bytes * context,
            operations=rows * (2.0 * self.parameters + attention),
            ms=ms,
        )


def _best(work: Callable[[], Any], now: Callable[[], float]) -> float:
    work()
    spent = []
    for _ in range(_TIMES):
        start = now()
        work()
        spent.append(now() - start)
    return max(min(spent), 1e-6)
