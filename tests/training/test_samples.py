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
    ids = frequent_tokens(given, size=3, vocab_size=12, more=[[7, 7, 7]], always=[0])
    assert ids.tolist() == [0, 5, 7]  # 7 four times, 5 three times, the end token always
    share = coverage(given, ids)
    assert share.by_category == {"a": 1.0, "b": 1 / 3}
    assert share.overall == 4 / 6
    whole = frequent_tokens(given, size=12, vocab_size=12, more=[], always=[])
    assert whole.tolist() == list(range(12))


def test_an_end_token_above_every_id_of_the_answers_is_in_the_vocabulary() -> None:
    """As with Llama 3, whose special tokens are its last ids, which an answer may lack."""
    given = [TrainingSample(id="x", category="c", tokens=torch.tensor([5, 5, 5, 2, 2, 7]), start=1)]
    ids = frequent_tokens(given, size=4, vocab_size=128, more=[], always=[127, 126])
    assert ids.tolist() == [2, 5, 126, 127]
    unknown = frequent_tokens(given, size=4, vocab_size=128, more=[[200]], always=[300])
    assert unknown.tolist() == [0, 2, 5, 7], "ids that the target does not have count for nothing"


def test_tokens_that_the_target_does_not_have_are_refused() -> None:
    made = split([*many(), answer("other", [1, 2], [3, 90])], heldout=0.3, max_length=10)
    made.check_tokens(91)
    with pytest.raises(ConfigError, match=r"task\.answers: .*'other' has the token 90, .* 0 to 89"):
        made.check_tokens(90)
    with pytest.raises(ConfigError, match="has the token -1"):
        split([*many(), answer("x", [1, 2], [3, -1])], heldout=0.3, max_length=9).check_tokens(99)
