"""The terms of the losses.

The output head costs most of a step, as V is far wider than a draft layer. The frozen one is
multiplied in chunks whose logits never leave the processor's caches: the gradient of a cross
entropy is known in closed form, so it is taken while a chunk's logits are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specframe.training.teacher_laws import TeacherLaws

_CHUNK = 128  # rows whose logits exist at a time


def regression(predicted: Tensor, true: Tensor) -> Tensor:
    """Smooth L1 (beta 1) of [M, H] features, mean over H."""
    return functional.smooth_l1_loss(predicted, true, reduction="none").mean(-1)


def weighted_mean(rows: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean of [M] rows; 0 where nothing weighs."""
    return (rows * weight).sum() / weight.sum().clamp_min(1e-6)


def discounted(terms: Sequence[Tensor], decay: float) -> Tensor:
    """The mean of terms of steps 0, 1, 2, ... with weights 1, decay, decay^2, ..."""
    weights = [decay**step for step in range(len(terms))]
    weighted = [weight * term for weight, term in zip(weights, terms, strict=True)]
    return torch.stack(weighted).sum() / sum(weights)


def cross_entropy(logits: Tensor, shares: Tensor) -> Tensor:
    """[M] -sum_v c(v) log softmax(logits)(v) of logits and shares [M, Vd]."""
    return _RowwiseLoss.apply(logits, shares)


def frozen_cross_entropy(
    states: Tensor, weight: Tensor, rows: Tensor, laws: TeacherLaws, place: Tensor
) -> Tensor:
    """The weighted mean of that cross entropy over the laws' columns, by a frozen output head.

    states [M, H]; weight [M]; rows [Vd, H] of the head; place [M]: the law's row of each state.
    """
    share = weight / weight.sum().clamp_min(1e-6)
    return _FrozenHead.apply(states, share, laws.table(rows), laws, place)


def _loss_and_gradient(logits: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """[M] cross entropies, and [M, Vd] their gradients, for which the logits are overwritten."""
    total = shares.sum(-1)
    dotted = torch.linalg.vecdot(shares, logits)
    top = logits.amax(-1, keepdim=True)
    exponentials = logits.sub_(top).exp_()
    mass = exponentials.sum(-1)
    rows = total * (mass.log() + top[:, 0]) - dotted
    return rows, exponentials.mul_((total / mass)[:, None]).sub_(shares)


class _RowwiseLoss(torch.autograd.Function):
    """Cross entropy row by row; the forward pass computes the gradient too."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, shares: Tensor) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        rows, gradient = _loss_and_gradient(logits.to(wide, copy=True), shares)
        ctx.save_for_backward(gradient.to(logits.dtype))
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0][:, None].to(gradient.dtype), None


class _FrozenHead(torch.autograd.Function):
    """Output head and cross entropy together, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, table: Tensor, laws: TeacherLaws, place: Tensor
    ) -> Tensor:
        total = laws.shares.new_zeros(())
        gradient = torch.empty_like(states)
        for start in range(0, len(states), _CHUNK):
            part = slice(start, start + _CHUNK)
            logits = states[part].to(table.dtype) @ table.t()
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            if laws.offsets is not None:
                logits += laws.offsets
            rows, grads = _loss_and_gradient(logits, laws.shares[place[part]])
            total += (rows * weight[part]).sum()
            grads.mul_(weight[part, None])
            gradient[part] = (grads.to(table.dtype) @ table).to(states.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None, None
