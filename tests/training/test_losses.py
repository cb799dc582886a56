"""Terms of the losses against their plain formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.training.losses import cross_entropy, frozen_cross_entropy, regression, weighted_mean
from specframe.training.teacher_laws import TeacherLaws


def test_formulas() -> None:
    assert regression(torch.tensor([[2.0, 0.5]]), torch.zeros(1, 2)).item() == (1.5 + 0.125) / 2
    rows, weight = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])
    assert weighted_mean(rows, weight).item() == 2.0
    assert weighted_mean(rows, weight * 0).item() == 0.0


def plain(logits: Tensor, shares: Tensor) -> Tensor:
    return -(shares * logits.log_softmax(-1)).sum(-1)


def test_cross_entropy_and_its_gradient() -> None:
    logits = (5 * torch.randn(4, 9).double()).requires_grad_()
    shares, scale = torch.rand(4, 9).double(), torch.rand(4).double()
    (expected,) = torch.autograd.grad((scale * plain(logits, shares)).sum(), logits)
    found = cross_entropy(logits, shares)
    torch.testing.assert_close(found, plain(logits, shares))
    (ours,) = torch.autograd.grad((scale * found).sum(), logits)
    torch.testing.assert_close(ours, expected)


def test_a_frozen_head_in_chunks() -> None:
    count, size = 300, 7  # more than two chunks
    states = torch.randn(count, size).double().requires_grad_()
    table, shares = torch.randn(11, size).double(), torch.rand(50, 6).double()
    place, weight = torch.randint(0, 50, (count,)), torch.rand(count).double()
    columns, offsets = torch.tensor([3, 10, 1, 0, 7, 4]), torch.rand(6)
    logits = states @ table[columns].t() + offsets
    expected = weighted_mean(plain(logits, shares[place]), weight)
    laws = TeacherLaws(shares=shares, place=torch.empty(0), columns=columns, offsets=offsets)
    found = frozen_cross_entropy(states, weight, table, laws, place)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(3 * one, states)[0] for one in (found, expected)]
    torch.testing.assert_close(*gradients)
