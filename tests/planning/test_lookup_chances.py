"""How likely looked-up tokens are right, worked out by hand."""

from __future__ import annotations

import pytest

from specframe.lookup.foresight import Prospect
from specframe.lookup.trie import Trie
from specframe.planning.lookup_chances import LookupChances, chain_prospect, likeliest_paths

BASE = [0.2, 0.4, 0.8]


def prospect(branches: dict[tuple[int, ...], float], *, match: int | None = 1) -> Prospect:
    trie = Trie(max_nodes=64)
    for branch, weight in branches.items():
        trie.add(branch, weight)
    return Prospect(source="text", expand=lambda _: [], known=trie, match_length=match)


def found(one: Prospect, chances: LookupChances, depth: int = 8) -> dict[tuple[int, ...], float]:
    return {node.path: node.chance for node in likeliest_paths(one, chances, depth=depth)}


def test_chances_follow_the_match_and_the_shares() -> None:
    one = prospect({(5, 6, 7): 3.0, (8,): 1.0})
    made = found(one, LookupChances(BASE, weight=8))
    assert list(made) == [(5,), (5, 6), (8,), (5, 6, 7)]
    assert made[5,] == pytest.approx(0.2 * 0.75)
    assert made[8,] == pytest.approx(0.2 * 0.25)
    assert made[5, 6] == pytest.approx(0.15 * 0.4)
    assert made[5, 6, 7] == pytest.approx(0.15 * 0.4 * 0.8)


def test_the_last_entry_goes_on_and_depth_is_kept() -> None:
    made = found(prospect({(1, 2, 3): 1.0}, match=40), LookupChances(BASE, weight=8), depth=2)
    assert list(made.values()) == pytest.approx([0.8, 0.64])


def test_a_source_that_does_not_say_counts_as_two() -> None:
    made = found(prospect({(1,): 1.0}, match=None), LookupChances(BASE, weight=8))
    assert made == {(1,): pytest.approx(0.4)}


def test_a_text_that_agrees_raises_them_and_one_that_does_not_lowers_them() -> None:
    one = prospect({(5, 6): 1.0})
    right, wrong = LookupChances(BASE, weight=2), LookupChances(BASE, weight=2)
    right.learn(one, [5, 9])
    wrong.learn(one, [7])
    # Of the short matches: 0.2 + 0.4 expected, 1 right; and 0.2 expected, none right.
    assert found(one, right)[5,] == pytest.approx(0.2 * (1 + 2) / (0.6 + 2))
    assert found(one, wrong)[5,] == pytest.approx(0.2 * (0 + 2) / (0.2 + 2))
    other = prospect({(5, 6): 1.0}, match=30)
    assert found(other, right) == found(other, wrong), "long matches are counted apart"


def test_no_chance_is_certain() -> None:
    chances = LookupChances([0.6], weight=0.1)
    one = prospect({(1,) * 20: 1.0}, match=30)
    chances.learn(one, [1] * 20)
    assert 0.99 < found(one, chances)[1,] < 1


def test_a_network_teaches_nothing() -> None:
    chances = LookupChances(BASE, weight=1)
    chances.learn(Prospect(source="net", expand=lambda _: []), [1, 2])
    assert found(prospect({(1,): 1.0}), chances) == {(1,): pytest.approx(0.2)}


def test_a_chain_to_reckon_with() -> None:
    made = found(chain_prospect(3, match_length=2), LookupChances(BASE, weight=8))
    assert list(made.values()) == pytest.approx([0.4, 0.32, 0.256])
