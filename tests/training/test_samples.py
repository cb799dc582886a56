"""Samples, their two sides, draft vocabularies and what they cover."""

from __future__ import annotations

import pytest
import torch

from specframe.errors import ConfigError
from specframe.prompts.answers import Answer
from specframe.training.samples import TrainingSample, coverage, frequent_tokens, split


def answer(name: str, prompt: list[int], tokens: list[int], turn: int = 0) -> Answer:
    return Answer(
        id=name,
        turn=turn,
        category=None,
        source=None,
        turns=("",) * (turn + 1),
        prompt_tokens=prompt,
        tokens=tokens,
        finish_reason="length",
    )


def many(count: int = 40) -> list[Answer]:
    return [
        answer(f"p{i}", [1, 2], [3, 4, i], turn) for i in range(count) for turn in range(1 + i % 2)
    ]


def test_no_prompt_is_on_both_sides() -> None:
    made = split(many(), heldout=0.3, max_length=10)
    sides = [{one.id for one in part} for part in (made.train, made.heldout)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 40
    assert 4 <= len(sides[1]) <= 20


def test_a_growing_file_keeps_its_sides() -> None:
    small, large = (split(many(n), heldout=0.3, max_length=10) for n in (20, 40))
    assert {one.id for one in small.heldout} <= {one.id for one in large.heldout}
    assert small.digest() != large.digest()


def test_an_answer_that_is_cut_away_carries_no_loss() -> None:
    given = [*many(), answer("long", list(range(9)), [1, 2, 3]), answer("one", [1], [2])]
    made = split(given, heldout=0.3, max_length=10)
    assert made.num_left_out == 2
    assert all(len(one) <= 10 and one.start < len(one) - 1 for one in made.all)


def test_an_empty_mask_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no assistant token carries loss"):
        split(many(), heldout=0.3, max_length=3)
    with pytest.raises(ConfigError, match="no assistant token carries loss"):
        split([], heldout=0.3, max_length=10)
    with pytest.raises(ConfigError, match=r"task\.heldout"):
        split(many(3), heldout=1e-9, max_length=10)


def test_draft_vocabulary() -> None:
    def sample(tokens: list[int], category: str) -> TrainingSample:
        return TrainingSample(id="x", category=category, tokens=torch.tensor(tokens), start=1)

    given = [sample([9, 5, 5, 7], "a"), sample([9, 5, 3, 3], "b")]
    ids = frequent_tokens(given, size=3, more=[[7, 7, 7]], always=[0])
    assert ids.tolist() == [0, 5, 7]  # 7 four times, 5 three times, the end token always
    share = coverage(given, ids)
    assert share.by_category == {"a": 1.0, "b": 1 / 3}
    assert share.overall == 4 / 6
    assert frequent_tokens(given, size=12, more=[], always=[]).tolist() == list(range(12))
