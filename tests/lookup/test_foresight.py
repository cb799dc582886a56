"""What drafters say of a step before they draft it, and that saying it runs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from specframe import load
from specframe.lookup.foresight import prospects_of
from specframe.lookup.trie import TrieNode

PROMPT = (1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3)


def prospects(*words: str, prompt: tuple[int, ...] = PROMPT) -> list[Any]:
    engine = load(["target=toy", *words])
    loop = engine.decoding(max_new_tokens=8)
    loop.begin(prompt[:-1])
    loop.truncate(len(prompt) - 1, (prompt[-1],))
    return list(prospects_of(engine.components.drafter))


def shares(node: TrieNode) -> dict[int, float]:
    return {token: child.weight for token, child in node.children.items()}


def test_a_look_up_tells_its_match_and_its_tokens() -> None:
    (one,) = prospects("drafter=ngram")
    assert (one.source, one.match_length, one.aux_rows) == ("ngram", 3, 0)
    assert shares(one.known.root) == {5: 8.0**3, 4: 8.0**3}
    (one,) = prospects("drafter=suffix", "drafter.min_probability=0")
    assert (one.source, one.match_length) == ("suffix", 3)
    found = shares(one.known.root)
    assert found.keys() == {4, 5}
    assert found[4] == found[5]


def test_where_nothing_is_found_nothing_is_known() -> None:
    (one,) = prospects("drafter=ngram", prompt=(1, 2, 3, 4, 5))
    assert one.known.num_nodes == 0
    assert one.match_length == 0


def test_a_network_must_be_asked() -> None:
    (one,) = prospects("drafter=lm")
    assert (one.source, one.known, one.match_length) == ("lm", None, None)
    assert prospects("drafter=none") == []


def test_a_router_has_those_of_its_sources() -> None:
    found = prospects("drafter=router", "drafter.sources=[suffix,lm,ngram]")
    assert [one.source for one in found] == ["suffix", "lm", "ngram"]
    assert [one.known is None for one in found] == [False, True, False]


def test_auxiliary_rows_are_told() -> None:
    (one,) = prospects("drafter=lookahead", "tree.max_nodes=64")
    engine = load(["target=toy", "drafter=lookahead", "tree.max_nodes=64"])
    assert one.aux_rows == engine.components.drafter.traits.needs.aux_rows > 0
    assert one.match_length in (0, None)


@pytest.mark.parametrize("drafter", ["lm", "ouroboros", "cascade"])
def test_asking_runs_no_network(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from specframe.target.toy import Toy

    engine = load(["target=toy", f"drafter={drafter}", "tree=chain"])
    loop = engine.decoding(max_new_tokens=8)
    loop.begin(PROMPT)

    def forward(*args: Any, **more: Any) -> Any:
        raise AssertionError("a network ran")

    monkeypatch.setattr(Toy, "forward", forward)
    assert [one.known for one in prospects_of(engine.components.drafter)] == [None]
