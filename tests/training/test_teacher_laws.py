"""The laws that losses look up: the target's own, whole or over a sample of the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specframe.train.base import FINAL, FrozenTarget
from specframe.training.chains import StepRows
from specframe.training.teacher_laws import TeacherLaws
from specframe.training.unroll import UnrollWindow
from tests.small_models import full_logits
from tests.training.small_courses import batch_of, samples, small_target


def test_shares_of_the_likeliest_tokens_weigh_more() -> None:
    held, part = small_target(), samples().all[:3]
    frozen = FrozenTarget.of(held, None)
    batch = batch_of(part, (FINAL,))
    options: list[dict[str, Any]] = [{}, {"soft": 0.1, "top": (10, 1.0)}]
    probs, shares = (
        TeacherLaws.of(batch, frozen, batch.features[FINAL], **one).shares for one in options
    )
    best = probs.topk(10).indices
    expected = (0.1 * probs).scatter_add(-1, best, probs.gather(-1, best))
    torch.testing.assert_close(shares, expected)


def test_each_row_meets_the_law_after_its_own_token() -> None:
    held, part = small_target(), samples().all[:3]
    ids = torch.arange(0, 97, 3)
    frozen = FrozenTarget.of(held, ids)
    batch = batch_of(part, (FINAL,))
    laws = TeacherLaws.of(batch, frozen, batch.features[FINAL])
    window = UnrollWindow.of(batch)
    for step in range(3):
        at = StepRows.of(window, step, laws, frozen)
        found = laws.shares[at.place]
        for row, (sequence, feature) in enumerate(zip(at.sequence, at.feature, strict=True)):
            sample = part[int(sequence)]
            logits = full_logits(held.model, sample.tokens[: int(feature) + 1].tolist())[-1]
            expected = logits[ids].softmax(-1)
            torch.testing.assert_close(found[row].double(), expected, rtol=0, atol=1e-6)
            following = int(sample.tokens[int(feature) + 1])
            assert int(feature) + 1 >= sample.start, "only assistant tokens carry loss"
            assert bool(at.inside[row]) == (following % 3 == 0)


def sampled(
    negatives: int | None, *, top: tuple[int, float] = (0, 0.0)
) -> tuple[TeacherLaws, FrozenTarget]:
    frozen = FrozenTarget.of(small_target(), torch.arange(0, 97, 2))
    batch = batch_of(samples().all[:3], (FINAL,))
    features = batch.features[FINAL]
    return TeacherLaws.of(batch, frozen, features, top=top, negatives=negatives), frozen


def test_a_sample_of_everything_is_the_whole() -> None:
    whole, _ = sampled(None, top=(10, 1.0))
    laws, frozen = sampled(97, top=(10, 1.0))
    assert laws.columns is not None and laws.offsets is not None
    assert sorted(laws.columns.tolist()) == list(range(len(frozen.row_of[::2])))
    assert not laws.offsets.any()
    torch.testing.assert_close(laws.shares, whole.shares[:, laws.columns], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_sample_keeps_what_is_likely_and_norms_without_bias(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specframe.training.teacher_laws._LIKELY", 2)
    whole, frozen = sampled(None)
    assert frozen.table is not None
    states = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).double()
    true = (states @ frozen.table.t()).exp().sum(-1)
    sums = []
    for seed in range(400):
        torch.manual_seed(seed)
        laws, _ = sampled(4)
        assert laws.columns is not None and len(laws.columns) < whole.shares.shape[-1]
        torch.testing.assert_close(laws.shares, whole.shares[:, laws.columns], rtol=0, atol=1e-12)
        for row, best in enumerate(whole.shares.topk(2).indices):
            assert torch.isin(best, laws.columns).all(), row
        sums.append(laws.logits(states, frozen.table).exp().sum(-1))
    found = torch.stack(sums)
    error = found.std(0) / len(sums) ** 0.5
    assert (error < 0.05 * true).all(), "too coarse to see a bias"
    assert ((found.mean(0) - true).abs() < 4 * error).all()


@pytest.mark.parametrize("negatives", [None, 3])
def test_the_token_that_followed_weighs_more(negatives: int | None) -> None:
    laws, frozen = sampled(negatives)
    batch = batch_of(samples().all[:3], (FINAL,))
    sharper = laws.with_followed_token(batch, frozen, 2.0)
    gained = sharper.shares - laws.shares
    for sequence, token in (laws.place >= 0).nonzero().tolist():
        row = gained[laws.place[sequence, token]]
        following = int(batch.tokens[sequence, token + 1])
        if following % 2:
            assert not row.any(), "the vocabulary lacks it"
            continue
        columns = torch.arange(len(row)) if laws.columns is None else laws.columns
        assert columns[row.nonzero()[:, 0]].tolist() == [following // 2]
        assert row.max() == pytest.approx(2.0)
