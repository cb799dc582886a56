"""The terms of the losses, and the target's laws that they are held against.

The head costs most of a step (V is far wider than a draft layer), so the frozen one is multiplied
in chunks whose logits never leave the processor's caches: the gradient of a cross entropy is known
in closed form and is taken on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specframe.train.batches import Batch

_CHUNK = 128  # rows whose logits are held at a time


def regression(predicted: Tensor, true: Tensor) -> Tensor:
    """Smooth L1 (beta 1) of [M, H] features, mean over H."""
    return functional.smooth_l1_loss(predicted, true, reduction="none").mean(-1)


def mean(rows: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean of [M] rows; 0 where nothing weighs."""
    return (rows * weight).sum() / weight.sum().clamp_min(1e-6)


@dataclass(frozen=True, kw_only=True)
class Laws:
    """What predictions are held against, at every position whose next token has weight.

    shares [M, Vd]: c(v) of the cross entropy -sum_v c(v) log q(v); place [B, L]: the row that
    belongs to what follows token u, -1 where there is none.
    """

    shares: Tensor
    place: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        batch: Batch,
        features: Tensor,
        head: Callable[[Tensor], Tensor],
        *,
        soft: float = 1.0,
        top: int = 0,
        top_weight: float = 0.0,
    ) -> Laws:
        """c = soft * p, and top_weight * p more for the target's `top` likeliest tokens.

        features [B, L, H] enter the target's head: [M, H] -> [M, Vd].
        """
        wanted = torch.zeros_like(batch.weight, dtype=torch.bool)
        wanted[:, 1:-1] = batch.weight[:, 2:] > 0
        with torch.autocast(features.device.type, enabled=False):
            logits = head(features[wanted])
        probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        best, rows = probs.topk(min(top, probs.shape[-1]), dim=-1)
        # In place: this table is the largest thing in memory.
        shares = probs.mul_(soft).scatter_add_(-1, rows, top_weight * best)
        place = torch.where(wanted, wanted.flatten().cumsum(0).view(wanted.shape) - 1, -1)
        return cls(shares=shares, place=place)

    def sharpened(self, batch: Batch, row_of: Tensor, hard: float) -> Laws:
        """The same with `hard` more for the token that did follow, where the vocabulary has it."""
        sequence, token = (self.place >= 0).nonzero(as_tuple=True)
        rows = row_of[batch.tokens[sequence, token + 1]]
        inside = (rows >= 0).to(self.shares.dtype)
        more = self.shares.scatter_add(-1, rows.clamp_min(0)[:, None], hard * inside[:, None])
        return Laws(shares=more, place=self.place)


def cross_entropy(logits: Tensor, shares: Tensor) -> Tensor:
    """[M] -sum_v c(v) log softmax(logits)(v) of logits and shares [M, Vd]."""
    return _Rows.apply(logits, shares)


def frozen_cross_entropy(
    states: Tensor, weight: Tensor, table: Tensor, shares: Tensor, place: Tensor
) -> Tensor:
    """The weighted mean of that over rows, with logits = states @ table^T by a frozen head.

    states [M, H]; weight [M]; table [Vd, H]; shares [*, Vd], of which row i meets `place[i]`.
    """
    return _Frozen.apply(states, weight / weight.sum().clamp_min(1e-6), table, shares, place)


def _pulled(logits: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """[M] cross entropies and [M, Vd] their gradients by the logits, which are overwritten."""
    total = shares.sum(-1)
    dotted = torch.linalg.vecdot(shares, logits)
    top = logits.amax(-1, keepdim=True)
    grown = logits.sub_(top).exp_()
    mass = grown.sum(-1)
    rows = total * (mass.log() + top[:, 0]) - dotted
    return rows, grown.mul_((total / mass)[:, None]).sub_(shares)


class _Rows(torch.autograd.Function):
    """Cross entropy by rows; the gradient is made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, shares: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        rows, pulled = _pulled(logits.to(wide, copy=True), shares)
        ctx.save_for_backward(pulled.to(logits.dtype))
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (pulled,) = ctx.saved_tensors
        return pulled * grads[0][:, None].to(pulled.dtype), None


class _Frozen(torch.autograd.Function):
    """Head and cross entropy together, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, table: Tensor, shares: Tensor, place: Tensor
    ) -> Tensor:
        total = shares.new_zeros(())
        pulled = torch.empty_like(states)
        for start in range(0, len(states), _CHUNK):
            part = slice(start, start + _CHUNK)
            logits = states[part].to(table.dtype) @ table.t()
            wide = torch.promote_types(logits.dtype, torch.float32)
            rows, grads = _pulled(logits.to(wide), shares[place[part]])
            total += (rows * weight[part]).sum()
            grads.mul_(weight[part, None])
            pulled[part] = (grads.to(table.dtype) @ table).to(states.dtype)
        ctx.save_for_backward(pulled)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (pulled,) = ctx.saved_tensors
        return pulled * grads[0].to(pulled.dtype), None, None, None, None
