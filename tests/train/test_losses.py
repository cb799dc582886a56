"""Terms of the losses against their plain formulas, and the laws they look up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specframe.train.base import FINAL, Frozen
from specframe.train.chains import Stepped
from specframe.train.losses import Laws, cross_entropy, frozen_cross_entropy, mean, regression
from specframe.train.unroll import Window
from tests.models import full_logits
from tests.train.lessons import samples, small_target
from tests.train.test_unroll import batch_of


def test_formulas() -> None:
    assert regression(torch.tensor([[2.0, 0.5]]), torch.zeros(1, 2)).item() == (1.5 + 0.125) / 2
    rows, weight = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])
    assert mean(rows, weight).item() == 2.0
    assert mean(rows, weight * 0).item() == 0.0


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
    table, shares = torch.randn(11, size).double(), torch.rand(50, 11).double()
    place, weight = torch.randint(0, 50, (count,)), torch.rand(count).double()
    expected = mean(plain(states @ table.t(), shares[place]), weight)
    found = frozen_cross_entropy(states, weight, table, shares, place)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(3 * one, states)[0] for one in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_shares_of_the_likeliest_tokens_weigh_more() -> None:
    held, part = small_target(), samples().all[:3]
    frozen = Frozen.of(held, None)
    batch = batch_of(part, (FINAL,))
    options: list[dict[str, Any]] = [{}, {"soft": 0.1, "top": 10, "top_weight": 1.0}]
    probs, shares = (
        Laws.of(batch, batch.features[FINAL], frozen.head, **one).shares for one in options
    )
    best = probs.topk(10).indices
    expected = (0.1 * probs).scatter_add(-1, best, probs.gather(-1, best))
    torch.testing.assert_close(shares, expected)


def test_each_row_meets_the_law_after_its_own_token() -> None:
    held, part = small_target(), samples().all[:3]
    ids = torch.arange(0, 97, 3)
    frozen = Frozen.of(held, ids)
    batch = batch_of(part, (FINAL,))
    laws = Laws.of(batch, batch.features[FINAL], frozen.head)
    window = Window.of(batch)
    for step in range(3):
        at = Stepped.of(window, step, laws, frozen)
        found = laws.shares[at.place]
        for row, (sequence, feature) in enumerate(zip(at.sequence, at.feature, strict=True)):
            sample = part[int(sequence)]
            logits = full_logits(held.model, sample.tokens[: int(feature) + 1].tolist())[-1]
            expected = logits[ids].softmax(-1)
            torch.testing.assert_close(found[row].double(), expected, rtol=0, atol=1e-6)
            following = int(sample.tokens[int(feature) + 1])
            assert int(feature) + 1 >= sample.start, "only assistant tokens carry loss"
            assert bool(at.inside[row]) == (following % 3 == 0)
