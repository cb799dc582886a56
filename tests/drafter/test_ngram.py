"""Prompt lookup against a search of the whole text that keeps no index."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from specframe import load
from specframe.drafter.base import Continuation
from specframe.drafter.ngram import Ngram
from specframe.errors import ConfigError
from specframe.records import Context
from specframe.types import Budget, TargetOutput
from tests.small_models import Composition, decode, toy, tree_of

NOTHING = TargetOutput(logits=torch.zeros(1, 1))


def drafter(
    tokens: Sequence[int], *, n_max: int = 3, n_min: int = 1, length: int = 4, matches: int = 8
) -> Ngram:
    """One that has begun on these tokens."""
    made = Ngram(n_max=n_max, n_min=n_min, length=length, max_matches=matches)
    made.begin(Context.of(tokens, torch.device("cpu")), NOTHING)
    return made


def search(
    tokens: Sequence[int], *, n_max: int, n_min: int, length: int, matches: int
) -> list[list[int]]:
    """Continuations: longest suffix first, latest occurrence first, each place once."""
    places: list[int] = []
    for n in range(n_max, n_min - 1, -1):
        suffix = list(tokens[len(tokens) - n :])
        for end in range(len(tokens) - 1, n - 1, -1):
            if n < len(tokens) and list(tokens[end - n : end]) == suffix and end not in places:
                places.append(end)
    return [list(tokens[end : end + length]) for end in places[:matches]]


def found(made: Ngram) -> list[list[int]]:
    """Tokens of what it proposes."""
    return [list(one.tokens) for one in made.continuations()]


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_what_a_search_finds_while_the_text_grows(seed: int) -> None:
    dice = random.Random(seed)
    numbers = {
        "n_max": dice.randint(1, 4),
        "length": dice.randint(1, 6),
        "matches": dice.randint(1, 6),
    }
    numbers["n_min"] = dice.randint(1, numbers["n_max"])
    tokens = [dice.randint(0, 3) for _ in range(dice.randint(1, 12))]
    made = drafter(tokens, **numbers)
    for _ in range(12):
        assert found(made) == search(tokens, **numbers)
        more = [dice.randint(0, 3) for _ in range(dice.randint(1, 3))]
        tokens += more
        made.context.extend(more)
        if dice.random() < 0.3:
            kept = dice.randint(1, len(tokens))
            del tokens[kept:]
            made.context.truncate(kept)
            made.truncate(kept)


def test_a_growing_index_equals_one_made_anew() -> None:
    dice = random.Random(1)
    tokens = [dice.randint(0, 4) for _ in range(60)]
    grown = drafter(tokens[:5])
    for token in tokens[5:]:
        grown.context.extend([token])
        grown.continuations()
    anew = drafter(tokens)
    anew.continuations()
    assert {key: ends for key, ends in grown._ends.items() if ends} == {
        key: ends for key, ends in anew._ends.items() if ends
    }


def test_the_end_of_the_text_is_no_match_of_itself() -> None:
    assert found(drafter([1, 2, 3])) == []
    assert found(drafter([7])) == []
    assert found(drafter([7, 7])) == [[7]]


def test_the_longest_suffix_comes_first() -> None:
    made = drafter([1, 2, 3, 9, 3, 8, 1, 2, 3])
    assert found(made) == [[9, 3, 8, 1], [8, 1, 2, 3]]
    weights = [one.weight for one in made.continuations()]
    assert weights[0] > 8 * 7 * weights[1] / 8, "a longer match outweighs several shorter ones"
    assert made.native(Budget(rows=9, depth=2)) == [[9, 3], [8, 1]]


def test_several_matches_become_a_tree() -> None:
    prompt = (1, 2, 0, 3, 1, 2, 4, 5, 1, 2)
    composition = Composition(
        target=toy(),
        drafter=Ngram(n_max=2, n_min=2, length=3, max_matches=4),
        tree=tree_of("native"),
    )
    loop = composition.decoding(8)
    loop.begin(prompt)
    loop.context.truncate(len(prompt))  # as if the first token had been the last of the prompt
    composition.drafter.truncate(len(prompt))
    builder = loop.lane.builder("place")
    composition.tree.grow(builder, composition.drafter, Budget(rows=12, depth=6))
    draft = builder.build()
    assert draft.num_rows == 7
    assert sorted(draft.tokens[draft.depths == 1].tolist()) == [0, 4]


def test_without_a_match_the_step_is_plain() -> None:
    composition = Composition(
        target=toy(),
        drafter=Ngram(n_max=32, n_min=32, length=4, max_matches=2),
        tree=tree_of("dynamic"),
    )
    outcome = decode(composition, (1, 2, 3), 20)
    assert all(record.draft.num_rows == 1 for record in outcome.records)
    assert outcome.tokens == decode(Composition(target=toy()), (1, 2, 3), 20).tokens


def test_repeated_text_is_accepted() -> None:
    composition = Composition(
        target=toy(),
        drafter=Ngram(n_max=3, n_min=1, length=6, max_matches=4),
        tree=tree_of("chain"),
    )
    outcome = decode(composition, (1, 2, 3), 40)
    assert outcome.num_accepted > 20, "a greedy chain over six tokens repeats itself"


def test_the_shorter_suffix_must_not_be_the_longer() -> None:
    with pytest.raises(ConfigError, match=r"drafter\.n_min=4 is above drafter\.n_max=3"):
        load(["target=toy", "drafter=ngram", "drafter.n_min=4"])


def test_a_continuation_weighs_one_unless_told() -> None:
    assert Continuation([1]).weight == 1.0
