"""Retrieval from a datastore: longest suffix, most frequent continuations, exact text."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe import load
from specframe.drafter.rest import Rest
from specframe.errors import ConfigError
from specframe.records import Context
from specframe.testing.defaults import component
from specframe.types import Budget, TargetOutput
from tests.lookup.test_suffix_automaton import ends
from tests.small_models import Composition, decode, oracle, target, toy, tree_of

NOTHING = TargetOutput(logits=torch.zeros(1, 1))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))


def store(folder: Path, documents: Sequence[Sequence[int]]) -> str:
    """A file of these answers."""
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps({"tokens": list(one)}) + "\n" for one in documents))
    return str(path)


def drafter(corpus: str, **changes: Any) -> Rest:
    """One with the numbers of the paper's code, unless told."""
    numbers = {"max_match": 16, "min_match": 2, "length": 10, "max_nodes": 64, "target": toy()}
    return Rest(corpus=corpus, **{**numbers, **changes})


def drafted(made: Rest, tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """Paths after these tokens, in order."""
    made.begin(Context.of(tokens, torch.device("cpu")), NOTHING)
    return [tuple(path) for path in made.grown().branches()]


def search(
    documents: list[list[int]], context: list[int], *, matches: tuple[int, int], length: int
) -> Counter[tuple[int, ...]]:
    """Count of each prefix of what followed the longest suffix."""
    found: Counter[tuple[int, ...]] = Counter()
    for size in range(min(matches[1], len(context)), matches[0] - 1, -1):
        for one in documents:
            for end in ends(one, context[len(context) - size :]):
                after = one[end : end + length]
                found.update(tuple(after[: n + 1]) for n in range(len(after)))
        if any(ends(one, context[len(context) - size :]) for one in documents):
            break
    return found


@pytest.mark.parametrize("seed", range(25))
def test_it_drafts_what_a_search_finds_most_often(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    documents = [
        [dice.randrange(4) for _ in range(dice.randint(1, 30))] for _ in range(dice.randint(1, 6))
    ]
    low = dice.randint(1, 2)
    numbers = {"min_match": low, "max_match": dice.randint(low, 5), "length": dice.randint(1, 4)}
    room = dice.randint(1, 20)
    made = drafter(store(tmp_path, documents), **numbers, max_nodes=room)
    for _ in range(8):
        context = [dice.randrange(4) for _ in range(dice.randint(1, 9))]
        span = (numbers["min_match"], numbers["max_match"])
        wanted = search(documents, context, matches=span, length=numbers["length"])
        found = drafted(made, context)
        assert [wanted[path] for path in found] == sorted(wanted.values(), reverse=True)[:room]
        assert len(set(found)) == len(found)


def test_the_longest_suffix_wins(tmp_path: Path) -> None:
    path = store(tmp_path, [[1, 2, 3, 4], [2, 3, 5], [2, 3, 5], [0, 3, 1]])
    assert drafted(drafter(path), [1, 2, 3]) == [(4,)]
    assert drafted(drafter(path), [5, 2, 3]) == [(5,), (4,)]
    assert drafted(drafter(path, max_match=2), [1, 2, 3])[0] == (5,)


def test_a_shorter_match_than_min_match_is_none(tmp_path: Path) -> None:
    path = store(tmp_path, [[1, 2, 3]])
    assert drafted(drafter(path), [0, 2]) == []
    assert drafted(drafter(path, min_match=1), [0, 2]) == [(3,)]
    assert drafted(drafter(path), [2]) == []
    assert drafted(drafter(path), [4, 4, 4]) == []


def test_min_match_above_max_match_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.min_match=4 is above drafter\.max_match=2"):
        load(
            [
                "target=toy",
                "drafter=rest",
                f"drafter.corpus={store(tmp_path, [[1]])}",
                "drafter.min_match=4",
                "drafter.max_match=2",
            ]
        )


@pytest.mark.parametrize("tree", ["native", "dynamic", "chain", "static"])
def test_text_is_the_oracle_s_whatever_the_datastore(tree: str, tmp_path: Path) -> None:
    dice = random.Random(0)
    text = oracle("llama", (5, 17, 42), 24)
    noise = [[dice.randrange(97) for _ in range(50)] for _ in range(20)]
    spoilt = [token if dice.random() < 0.8 else dice.randrange(97) for token in text]
    path = store(tmp_path, [*noise, spoilt, [*text[:9], *text[3:]]])
    made = drafter(path, target=target("llama"), min_match=1)
    outcome = decode(
        Composition(target=target("llama"), drafter=made, tree=tree_of(tree)), (5, 17, 42), 24
    )
    assert outcome.tokens == text
    assert outcome.num_accepted > 0


def test_a_text_it_holds_is_accepted_in_full(tmp_path: Path) -> None:
    text = oracle("llama", (5, 17, 42), 45)
    made = Composition(
        target=target("llama"),
        drafter=drafter(store(tmp_path, [text]), target=target("llama"), min_match=1),
        tree=component("tree", "native", proposal="place", depth=10, max_nodes=64),
    )
    outcome = decode(made, (5, 17, 42), 45)
    assert outcome.tokens == text
    assert [len(record.tokens) for record in outcome.records] == [11, 11, 11, 11]


def test_a_prompt_of_one_token_and_an_end_inside_a_branch(tmp_path: Path) -> None:
    plain = decode(Composition(target=toy()), (1,), 40).tokens
    path = store(tmp_path, [plain])
    composition = Composition(
        target=toy(), drafter=drafter(path, min_match=1), tree=tree_of("native")
    )
    assert decode(composition, (1,), 40).tokens == plain
    end = plain[7]
    composition.stop = type(composition.stop)(eos=[end], strings=None, criteria=None)
    assert decode(composition, (1,), 40).tokens == plain[: plain.index(end) + 1]


def test_small_budgets_keep_the_most_frequent(tmp_path: Path) -> None:
    path = store(tmp_path, [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 0]])
    made = drafter(path)
    everything = drafted(made, [1, 2])
    assert everything[0] == (3,)
    assert [tuple(one) for one in made.native(Budget(rows=3, depth=9))] == everything[:2]
    assert made.native(Budget(rows=9, depth=1)) == [[3], [0]]


def test_answers_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"drafter\.corpus=builtin: its tokens are of another"):
        load(["target=toy", "drafter=rest"])
