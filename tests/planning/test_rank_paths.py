"""Planned trees against all trees there are, on tables small enough to try each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from specframe.planning.rank_paths import RankPath, best_first, expected_length, sequoia, worth
from specframe.tree.static import validate

SHARES = [[0.56, 0.11, 0.05], [0.32, 0.12, 0.02], [0.2, 0.1, 0.0]]


def table(seed: int, *, depth: int, width: int, ranked: bool) -> list[list[float]]:
    draw = random.Random(seed)
    rows = [[draw.random() / width for _ in range(width)] for _ in range(depth)]
    return [sorted(row, reverse=True) for row in rows] if ranked else rows


def trees(depth: int, width: int, size: int) -> Iterator[set[RankPath]]:
    """Every prefix-closed tree of `size` paths."""
    nodes = [
        path
        for length in range(1, depth + 1)
        for path in itertools.product(range(width), repeat=length)
    ]
    for chosen in itertools.combinations(nodes, size):
        held = set(chosen)
        if all(path[:-1] in held for path in held if len(path) > 1):
            yield held


def is_closed(tree: set[RankPath]) -> bool:
    return all((*path[:-1], path[-1] - 1) in tree for path in tree if path[-1])


def best(shares: list[list[float]], size: int, *, closed: bool) -> float:
    found = trees(len(shares), len(shares[0]), size)
    return max(
        expected_length(shares, sorted(tree)) for tree in found if not closed or is_closed(tree)
    )


def test_worth_is_the_product_along_the_path() -> None:
    assert worth(SHARES, (0, 1, 1)) == pytest.approx(0.56 * 0.12 * 0.1)
    assert expected_length(SHARES, [(0,), (1,), (0, 0)]) == pytest.approx(1.67 + 0.56 * 0.32)
    assert expected_length(SHARES, []) == 1


@pytest.mark.parametrize("size", [1, 2, 4, 5])
@pytest.mark.parametrize("seed", range(4))
def test_best_first_is_the_best_of_all_trees(seed: int, size: int) -> None:
    shares = table(seed, depth=2, width=3, ranked=False)
    made = best_first(shares, max_paths=size, closed=False)
    assert expected_length(shares, made) == pytest.approx(best(shares, size, closed=False))
    validate(made, closed=False)
    ranked = [sorted(row, reverse=True) for row in shares]
    made = best_first(ranked, max_paths=size, closed=True)
    assert expected_length(ranked, made) == pytest.approx(best(ranked, size, closed=False))
    validate(made, closed=True)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(4))
def test_sequoia_is_the_best_of_all_trees_with_elder_siblings(seed: int, size: int) -> None:
    for ranked in (False, True):
        shares = table(seed, depth=2, width=3, ranked=ranked)
        made = sequoia(shares, max_paths=size)
        assert len(made) <= size
        validate(made, closed=True)
        assert expected_length(shares, made) == pytest.approx(best(shares, size, closed=True))
        greedy = best_first(shares, max_paths=size, closed=True)
        assert expected_length(shares, greedy) <= expected_length(shares, made) + 1e-12


@pytest.mark.parametrize("size", [7, 15, 31, 63])
def test_on_ranked_tables_both_agree(size: int) -> None:
    shares = table(9, depth=4, width=5, ranked=True)
    ours, theirs = (
        best_first(shares, max_paths=size, closed=True),
        sequoia(shares, max_paths=size),
    )
    assert len(ours) == len(theirs) == size
    assert expected_length(shares, ours) == pytest.approx(expected_length(shares, theirs))


def test_a_worthless_elder_is_added_for_the_younger() -> None:
    shares = [[0.0, 0.5], [0.5, 0.0]]
    assert sequoia(shares, max_paths=3) == [(0,), (1,), (1, 0)]
    assert sorted(best_first(shares, max_paths=3, closed=True)) == [(0,), (1,), (1, 0)]
    assert best_first(shares, max_paths=3, closed=False) == [(1,), (1, 0)]


def test_nothing_right_gives_no_tree() -> None:
    nothing = [[0.0] * 3] * 2
    for closed in (False, True):
        assert best_first(nothing, max_paths=9, closed=closed) == []
    assert sequoia(nothing, max_paths=9) == []


def test_a_large_plan_takes_no_time() -> None:
    shares = table(1, depth=5, width=10, ranked=True)
    assert len(sequoia(shares, max_paths=255)) == 255
    assert len(best_first(shares, max_paths=1000, closed=False)) == 1000
