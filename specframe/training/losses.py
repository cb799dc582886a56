"""The terms of the losses.

The head costs most of a step (V is far wider than a draft layer), so the frozen one is multiplied
in chunks whose logits never leave the processor's caches: the gradient of a cross entropy is known
in closed form and is taken on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specframe.training.teacher_laws import TeacherLaws

_CHUNK = 128  # rows whose logits are held at a time


def regression(predicted: Tensor, true: Tensor) -> Tensor:
    """Smooth L1 (beta 1) of [M, H] features, mean over H."""
    return functional.smooth_l1_loss(predicted, true, reduction="none").mean(-1)


def mean(rows: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean of [M] rows; 0 where nothing weighs."""
    return (rows * weight).sum() / weight.sum().clamp_min(1e-6)


def cross_entropy(logits: Tensor, shares: Tensor) -> Tensor:
    """[M] -sum_v c(v) log softmax(logits)(v) of logits and shares [M, Vd]."""
    return _Rows.apply(logits, shares)


def frozen_cross_entropy(
    states: Tensor, weight: Tensor, rows: Tensor, laws: TeacherLaws, place: Tensor
) -> Tensor:
    """The weighted mean of that over the laws' columns, with the logits of a frozen head.

    states [M, H]; weight [M]; rows [Vd, H] of the head; state i meets the law `place[i]`.
    """
    share = weight / weight.sum().clamp_min(1e-6)
    return _Frozen.apply(states, share, laws.table(rows), laws, place)


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
        ctx: Any, states: Tensor, weight: Tensor, table: Tensor, laws: TeacherLaws, place: Tensor
    ) -> Tensor:
        total = laws.shares.new_zeros(())
        pulled = torch.empty_like(states)
        for start in range(0, len(states), _CHUNK):
            part = slice(start, start + _CHUNK)
            logits = states[part].to(table.dtype) @ table.t()
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            if laws.raised is not None:
                logits += laws.raised
            rows, grads = _pulled(logits, laws.shares[place[part]])
            total += (rows * weight[part]).sum()
            grads.mul_(weight[part, None])
            pulled[part] = (grads.to(table.dtype) @ table).to(states.dtype)
        ctx.save_for_backward(pulled)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (pulled,) = ctx.saved_tensors
        return pulled * grads[0].to(pulled.dtype), None, None, None, None
