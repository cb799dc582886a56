"""The suffix array against a search of the whole corpus, and what is kept on the disk."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from specframe.errors import ConfigError
from specframe.lookup import datastore
from specframe.lookup.datastore import SORTED_TOKENS, Datastore, open_datastore
from specframe.prompts.corpus import SEPARATOR
from tests.lookup.test_suffix_automaton import ends, following
from tests.small_models import speller, toy


def corpus(dice: random.Random, letters: int) -> list[int]:
    """A few documents."""
    ids: list[int] = []
    for _ in range(dice.randint(1, 5)):
        ids += [*(dice.randrange(letters) for _ in range(dice.randint(1, 30))), SEPARATOR]
    return ids[:-1]


def expected(ids: list[int], part: list[int]) -> dict[int, int]:
    """What follows in the same document."""
    found = following(ids, part)
    found.pop(SEPARATOR, None)
    return dict(found)


@pytest.mark.parametrize("gathered", [4096, 3])
@pytest.mark.parametrize("seed", range(30))
def test_it_finds_what_a_search_finds(
    seed: int, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datastore, "_GATHERED", gathered)
    dice = random.Random(seed)
    ids = corpus(dice, dice.randint(1, 4))
    made = Datastore.build(np.array(ids))
    assert len(made) == sum(token != SEPARATOR for token in ids)
    for _ in range(20):
        part = [dice.randrange(4) for _ in range(dice.randint(1, 5))]
        span = made.find(part)
        assert (0 if span is None else made.count(span)) == len(ends(ids, part))
        if span is None:
            continue
        found = {token: count for token, count, _ in made.children(span)}
        wanted = expected(ids, part)
        # Of a long range a sample says which tokens there are; their counts are right.
        assert found.items() <= wanted.items()
        assert found == wanted or made.count(span) > gathered
        for token, count, deeper in made.children(span):
            assert deeper == made.find([*part, token])
            assert made.count(deeper) == count


@pytest.mark.parametrize("seed", range(30))
def test_matches_are_the_suffixes_that_occur(seed: int) -> None:
    dice = random.Random(seed)
    ids = corpus(dice, 3)
    made = Datastore.build(np.array(ids))
    # Often a piece of the corpus, so that matches are long.
    start = dice.randrange(len(ids))
    text = [1, 2, *(token for token in ids[start : start + 12] if token != SEPARATOR)]
    text += [dice.randrange(4)] * dice.randint(0, 1)
    counts = {size: len(ends(ids, text[-size:])) for size in range(1, len(text) + 1)}
    wanted = [(size, count) for size, count in counts.items() if count > counts.get(size + 1, 0)][
        ::-1
    ]
    query = made.query(text)
    assert [(one.length, made.count(one)) for one in query.matches()] == wanted
    longest = query.longest()
    assert (longest.length if longest else 0) == max((s for s, c in counts.items() if c), default=0)


def test_long_repetitions_are_in_order_as_far_as_is_looked() -> None:
    made = Datastore.build(np.array([1] * 300 + [2]))
    span = made.find([1] * (SORTED_TOKENS // 2))
    assert span is not None
    depth = 0
    while span is not None and (children := made.children(span)):
        counted = {token: count for token, count, _ in children}
        assert counted == dict(Counter({1: 300 - span.length, 2: 1}))
        span, depth = children[0][2], depth + 1
    assert depth == SORTED_TOKENS // 2, "deeper, nothing is said"
    assert made.query([1] * 1000).longest() == made.find([1] * (SORTED_TOKENS // 2))


def test_a_match_ends_with_its_document() -> None:
    made = Datastore.build(np.array([1, 2, SEPARATOR, 3, 4]))
    assert made.find([2, 3]) is None
    span = made.find([2])
    assert span is not None
    assert made.children(span) == []


def write(path: Path, tokens: list[int]) -> str:
    path.write_text(json.dumps({"tokens": tokens}) + "\n")
    return str(path)


def test_it_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.jsonl", [1, 2, 3, 1, 2, 4])
    first = open_datastore(path, toy())
    monkeypatch.setattr(Datastore, "build", lambda ids: pytest.fail("built again"))
    again = open_datastore(path, toy())
    assert again.tokens.tolist() == first.tokens.tolist()
    assert again.order.tolist() == first.order.tolist()
    assert isinstance(again.tokens.base, np.memmap)
    (folder,) = (tmp_path / "cache" / "datastore").iterdir()
    assert sorted(file.name for file in folder.glob("*.npy")) == ["order.npy", "tokens.npy"]


def test_a_table_that_was_changed_in_place_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.jsonl", [1, 2, 3, 1, 2, 4])
    order = open_datastore(path, toy()).order.tolist()
    (table,) = (tmp_path / "cache" / "datastore").glob("*/order.npy")
    for _ in range(2):
        with table.open("r+b") as opened:
            opened.seek(-4, 2)
            opened.write((10**6).to_bytes(4, "little"))
        assert open_datastore(path, toy()).order.tolist() == order
    assert np.load(table).tolist() == order, "what was built is stored in place of it"


def test_a_changed_file_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.jsonl", [1, 2, 3])
    assert open_datastore(path, toy()).find([5]) is None
    write(tmp_path / "a.jsonl", [1, 5, 3])
    assert open_datastore(path, toy()).find([5]) is not None


def test_a_kept_one_is_refused_for_a_smaller_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.jsonl", [1, 50, 3])
    open_datastore(path, speller())
    with pytest.raises(ConfigError, match="it holds the token id 50"):
        open_datastore(path, toy())


def test_a_cache_that_cannot_be_written_or_read_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("a file")
    monkeypatch.setenv("SPECFRAME_CACHE", str(blocked))
    path = write(tmp_path / "a.jsonl", [1, 2, 3])
    assert open_datastore(path, toy()).find([2]) is not None
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "other"))
    open_datastore(path, toy())
    for file in (tmp_path / "other").rglob("*.npy"):
        file.write_bytes(b"cut")
    assert open_datastore(path, toy()).find([2]) is not None
