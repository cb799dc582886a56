"""The terms of the losses, per row [M]; `mean` weighs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specframe.train.batches import Batch


def regression(predicted: Tensor, true: Tensor) -> Tensor:
    """Smooth L1 (beta 1) of [M, H] features, mean over H."""
    return functional.smooth_l1_loss(predicted, true, reduction="none").mean(-1)


def soft_cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:
    """-sum_v p(v) log q(v) of [M, Vd]; equals logsumexp(z) - sum_v p(v) z(v)."""
    return logits.logsumexp(-1) - torch.linalg.vecdot(target_probs, logits)


def top_cross_entropy(logits: Tensor, target_probs: Tensor, top: int) -> Tensor:
    """The same sum over the target's `top` likeliest tokens alone (HASS)."""
    probs, rows = target_probs.topk(min(top, target_probs.shape[-1]), dim=-1)
    held = logits.gather(-1, rows)
    return probs.sum(-1) * logits.logsumexp(-1) - (probs * held).sum(-1)


def mean(rows: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean of [M] rows; 0 where nothing weighs."""
    return (rows * weight).sum() / weight.sum().clamp_min(1e-6)


@dataclass(frozen=True, kw_only=True)
class Laws:
    """The target's laws over the draft vocabulary at every position whose next token has weight.

    probs [M, Vd]; place [B, L] row of the law that follows token u, -1 where there is none.
    """

    probs: Tensor
    place: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, batch: Batch, features: Tensor, head: Callable[[Tensor], Tensor]) -> Laws:
        """From what enters the target's head, features [B, L, H]; head: [M, H] -> [M, Vd]."""
        wanted = torch.zeros_like(batch.weight, dtype=torch.bool)
        wanted[:, 1:-1] = batch.weight[:, 2:] > 0
        probs = head(features[wanted]).float().softmax(-1)
        place = torch.where(wanted, wanted.flatten().cumsum(0).view(wanted.shape) - 1, -1)
        return cls(probs=probs, place=place)

    def after(self, places: Tensor) -> Tensor:
        """[M, Vd] laws at rows `places` [M] (none negative)."""
        return self.probs[places]
