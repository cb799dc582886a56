"""Check of one pass: what a row gives depends on what it sees, on no other row of its pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from specframe.cache.base import CACHES, CacheManager
from specframe.session.engine import Engine
from specframe.target.base import Forward, Target
from specframe.task.certify.text_checks import Check
from specframe.types import Rows

_FAR = 4096  # positions behind the text of a row that nobody sees, where a model has no limit
_EXACT, _ROUNDED = 1e-3, 0.3  # largest difference in standard deviations of the logits


class Swayed(Target):
    """Another target whose logits turn with the largest position of a pass."""

    title: ClassVar[str] = "a target that is swayed by the largest position of a pass"

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self.name, self.eos_ids, self.tokenizer = inner.name, inner.eos_ids, inner.tokenizer
        self.gives, self.device, self.dtype = inner.gives, inner.device, inner.dtype
        self.vocab_size, self.num_layers = inner.vocab_size, inner.num_layers

    def forward(
        self,
        rows: Rows,
        cache: CacheManager,
        *,
        layers: tuple[int, int] | None = None,
        skip: frozenset[str] = frozenset(),
        taps: Sequence[str] = (),
        want: Tensor | None = None,
    ) -> Forward:
        out = self._inner.forward(rows, cache, layers=layers, skip=skip, taps=taps, want=want)
        if out.logits is None:
            return out
        shift = int(rows.positions.max()) % self.vocab_size
        return Forward(logits=out.logits.roll(shift, -1), hidden=out.hidden, taps=out.taps)

    def embed(self, tokens: Tensor) -> Tensor:
        return self._inner.embed(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        return self._inner.head(hidden)


def row_company(engine: Engine, prompt: Sequence[int]) -> Check:
    """Check that a row gives the same beside another one, far behind it, that it does not see."""
    target = engine.components.target
    exact = target.dtype == torch.float64
    exact = exact or (target.dtype == torch.float32 and target.device.type == "cpu")
    limit = _EXACT if exact else _ROUNDED
    difference, broken = _sway(target, prompt), _sway(Swayed(target), prompt)
    return Check(
        name="rows of a pass",
        passed=difference <= limit,
        finding=(
            "beside a row that it does not see, at the last position there is, a row gives logits "
            f"that differ by {difference:.1e} standard deviations"
        ),
        numbers={"difference": difference},
        control=Swayed.title,
        caught=broken > limit,
    )


def _sway(target: Target, prompt: Sequence[int]) -> float:
    """Largest difference that company makes, in standard deviations of the logits."""
    alone, beside = (_logits(target, prompt, company=company) for company in (False, True))
    return float((alone - beside).abs().max() / alone.std().clamp_min(1e-30))


@torch.inference_mode()
def _logits(target: Target, prompt: Sequence[int], *, company: bool) -> Tensor:
    """[V] logits of the last token of a prompt, in a pass of its own after the others."""
    count = 2 if company else 1
    cache = CACHES.get("dynamic")()
    cache.open(0, columns=len(prompt) + 1, device=target.device)
    cache.reach[0] = len(prompt)
    if len(prompt) > 1:
        target.prefill(prompt[:-1], cache)
    fresh = cache.reserve([count])
    last = target.gives.max_positions or len(prompt) + _FAR
    positions = fresh.columns + len(prompt) - 1
    positions[1:] = last - 1
    rows = Rows(
        tokens=torch.full_like(positions, prompt[-1]),
        positions=positions,
        slots=fresh.slots,
        prefix=torch.tensor([len(prompt) - 1, 0], device=target.device)[:count],
        sees=torch.eye(count, dtype=torch.bool, device=target.device),
    )
    logits = target.forward(rows, cache, want=fresh.columns[:1]).logits
    assert logits is not None
    return logits[0].double()
