"""Terms of the losses against their plain formulas, and the laws they look up."""

from __future__ import annotations

import torch

from specframe.train.base import FINAL, Frozen
from specframe.train.chains import Stepped
from specframe.train.losses import Laws, mean, regression, soft_cross_entropy, top_cross_entropy
from specframe.train.unroll import Window
from tests.models import full_logits
from tests.train.lessons import samples, small_target
from tests.train.test_unroll import batch_of


def test_formulas() -> None:
    logits, probs = torch.randn(4, 9).double(), torch.randn(4, 9).double().softmax(-1)
    expected = -(probs * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(soft_cross_entropy(logits, probs), expected)
    torch.testing.assert_close(top_cross_entropy(logits, probs, 9), expected)
    kept = probs.topk(3).indices
    part = -(probs * logits.log_softmax(-1)).gather(-1, kept).sum(-1)
    torch.testing.assert_close(top_cross_entropy(logits, probs, 3), part)
    assert regression(torch.tensor([[2.0, 0.5]]), torch.zeros(1, 2)).item() == (1.5 + 0.125) / 2
    rows, weight = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])
    assert mean(rows, weight).item() == 2.0
    assert mean(rows, weight * 0).item() == 0.0


def test_each_row_meets_the_law_after_its_own_token() -> None:
    held, part = small_target(), samples().all[:3]
    ids = torch.arange(0, 97, 3)
    frozen = Frozen.of(held, ids)
    batch = batch_of(part, (FINAL,))
    laws = Laws.of(batch, batch.features[FINAL], frozen.head)
    window = Window.of(batch)
    for step in range(3):
        at = Stepped.of(window, step, laws, frozen)
        found = laws.after(at.place)
        for row, (sequence, feature) in enumerate(zip(at.sequence, at.feature, strict=True)):
            sample = part[int(sequence)]
            logits = full_logits(held.model, sample.tokens[: int(feature) + 1].tolist())[-1]
            expected = logits[ids].softmax(-1)
            torch.testing.assert_close(found[row].double(), expected, rtol=0, atol=1e-6)
            following = int(sample.tokens[int(feature) + 1])
            assert int(feature) + 1 >= sample.start, "only assistant tokens carry loss"
            assert bool(at.inside[row]) == (following % 3 == 0)
