"""Branches that a drafter knows become a tree that holds them, as far as there is room."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specframe.errors import IncompatibleComponents
from specframe.testing.draft_checks import builder, check_draft, paths
from specframe.tree.native import NativeTree
from specframe.types import Budget, Frontier, Proposal

BRANCHES = [[1, 2, 3], [1, 2, 4, 5], [6], [1, 7]]


class Branches:
    """Knows some branches."""

    def __init__(self, branches: Sequence[Sequence[int]]) -> None:
        self.branches = branches

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        return self.branches

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        raise AssertionError("tree=native takes branches only")


def grown(
    branches: Sequence[Sequence[int]], *, rows: int = 20, depth: int = 9
) -> list[tuple[int, ...]]:
    """Token paths of the tree."""
    made, budget = builder(), Budget(rows=rows, depth=depth)
    NativeTree(depth=6, max_nodes=20, proposal="place").grow(made, Branches(branches), budget)
    assert made.num_rows == made.build().num_rows
    check_draft(made.build(), budget)
    assert made.build().alive.all(), "nothing is verified in vain"
    return paths(made.build())


def prefixes(branches: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Every non-empty prefix, once, sorted."""
    return sorted({tuple(one[:n]) for one in branches for n in range(1, len(one) + 1)})


def test_the_tree_is_all_prefixes() -> None:
    assert grown(BRANCHES) == prefixes(BRANCHES)
    assert grown([[2, 2, 2], [2, 2], [2, 2, 2]]) == prefixes([[2, 2, 2]])


def test_no_branches_no_nodes() -> None:
    assert grown([]) == grown([[]]) == []


def test_the_best_branch_comes_first_when_room_is_short() -> None:
    assert grown(BRANCHES, rows=4) == prefixes([[1, 2, 3]])
    assert grown(BRANCHES, rows=5) == prefixes([[1, 2, 3], [1, 2, 4]])
    assert grown(BRANCHES, depth=1) == [(1,), (6,)]


def test_drafters_without_branches_are_refused() -> None:
    from specframe import load

    with pytest.raises(IncompatibleComponents, match=r"tree=native takes whole branches.*use tree"):
        load(["target=toy", "drafter=lm", "tree=native"])
