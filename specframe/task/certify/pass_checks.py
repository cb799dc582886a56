"""The check that a target's logits are the same, however its rows are divided into passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from specframe.cache.base import CACHES, CacheManager
from specframe.target.base import Forward, Target
from specframe.task.certify.text_checks import Check, equality_is_required, not_run
from specframe.types import Rows

NAME = "passes of any size"
_FAR = 1 << 15  # the last position where a target names no limit
_ROWS = 12
_DIVISIONS = {"one pass": [12], "two": [6, 6], "chunks": [1, 4, 2, 5], "token by token": [1] * 12}
_EXACT, _ROUNDED = 1e-6, 1e-2  # logits: in float64, and in float32

Pass = Callable[[Rows, CacheManager, Tensor], Forward]


class ByLargestPosition:
    """A target whose logits are scaled by the largest position of a pass, as some models' attention
    is, or whose rotary tables are chosen so."""

    title: ClassVar[str] = "a target that looks at the largest position of a pass"

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self, rows: Rows, cache: CacheManager, want: Tensor) -> Forward:
        out = self._target.forward(rows, cache, want=want)
        assert out.logits is not None
        return replace(out, logits=out.logits * (1 + rows.positions.max().log1p() / 10))


def passes_agree(target: Target, tokens: Sequence[int], *, max_gap: float) -> Check:
    """Score a text in one pass, in chunks and token by token.

    Its first half stands at the first positions and its second half at the last ones that the
    target has, so that a choice by the largest position of a pass falls differently.
    """
    if not tokens:
        return not_run(NAME, "there is no text", applies=True)

    def own(rows: Rows, cache: CacheManager, want: Tensor) -> Forward:
        return target.forward(rows, cache, want=want)

    text = [tokens[place % len(tokens)] for place in range(_ROWS)]
    gaps = _gaps(own, target, text)
    worst = max(gaps, key=lambda name: gaps[name])
    exact = equality_is_required(target)
    limit = _EXACT if target.dtype == torch.float64 else _ROUNDED if exact else max_gap
    within = gaps[worst] <= limit
    broken = _gaps(ByLargestPosition(target), target, text)
    return Check(
        name=NAME,
        passed=within if exact or not within else None,
        finding=(
            f"logits of {_ROWS} rows differ by {gaps[worst]:.2g} at most, of {limit:g} allowed "
            f"({worst} against one pass)"
        ),
        numbers={"gaps": gaps, "allowed": limit, "control_gaps": broken},
        control=ByLargestPosition.title,
        caught=max(broken.values()) > limit,
    )


def _gaps(run: Pass, target: Target, text: Sequence[int]) -> dict[str, float]:
    """The largest difference of any logit from that of one pass, by the name of the division."""
    whole, *others = (_logits(run, target, text, sizes) for sizes in _DIVISIONS.values())
    pairs = zip(list(_DIVISIONS)[1:], others, strict=True)
    return {name: float((logits - whole).abs().max()) for name, logits in pairs}


@torch.inference_mode()
def _logits(run: Pass, target: Target, text: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """[R, V] logits of all rows, from passes of these sizes.

    Nothing is committed: a committed column has its own number as its position, fresh ones have
    those that the passes gave them.
    """
    ids = torch.tensor(list(text), device=target.device)
    positions = _positions(target)
    cache = CACHES.get("dynamic")()
    cache.open(0, columns=len(text), device=target.device)
    parts, start = [], 0
    for size in sizes:
        here = slice(start, start + size)
        fresh = cache.reserve([size])
        rows = Rows(
            tokens=ids[here],
            positions=positions[here],
            slots=fresh.slots,
            prefix=torch.zeros_like(fresh.slots),
            sees=fresh.columns[:, None] >= torch.arange(fresh.extent, device=target.device),
        )
        out = run(rows, cache, torch.arange(size, device=target.device))
        assert out.logits is not None
        parts.append(out.logits.double())
        start += size
    return torch.cat(parts)


def _positions(target: Target) -> Tensor:
    """[R] the first positions and the last ones."""
    rows = torch.arange(_ROWS, device=target.device)
    last = max(target.gives.max_positions or _FAR, _ROWS)
    return torch.where(rows < _ROWS // 2, rows, rows + last - _ROWS)
