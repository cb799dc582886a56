"""Rank paths: bad ones are named before anything runs, good ones give one tree in any order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.testing.draft_checks import TableDrafter, builder, check_draft, paths
from specframe.tree.base import ProposalKind
from specframe.tree.static import StaticTree
from specframe.types import Budget, Frontier, Proposal

GOOD = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]]


def static(
    given: Any, *, proposal: ProposalKind = "place", depth: int = 6, rows: int = 40
) -> StaticTree:
    """A tree of these paths."""
    return StaticTree(depth=depth, max_nodes=rows, proposal=proposal, paths=given)


def grown(tree: StaticTree, *, rows: int = 40, depth: int = 9, source: Any = None) -> list[Any]:
    """Token paths of the tree over a random table."""
    made = builder()
    tree.grow(made, source or TableDrafter(2), Budget(rows=rows, depth=depth))
    check_draft(made.build(), Budget(rows=rows, depth=depth))
    return paths(made.build())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[0], [1, 0]], r"\[1, 0\] has no parent; add \[1\]"),
        ([[0, 1]], r"\[0, 1\] has no parent; add \[0\]"),
        ([[0], [1], [0]], r"\[0\] is listed twice"),
        ([], r"tree\.paths is empty"),
        ([[0], []], r"\[\] must be a non-empty list"),
        ([[0], [-1]], r"\[-1\] must be a non-empty list of ranks from 0"),
        ([[0], ["a"]], r"\['a'\] must be a list of ranks from 0"),
        ([[0], [0.0]], r"\[0\.0\] must be a list of ranks from 0"),
        ([[True]], r"\[True\] must be a list of ranks from 0"),
        ([0, 1], r"tree\.paths: 0 must be a list of ranks"),
        ([[[0]]], r"\[\[0\]\] must be a list of ranks"),
    ],
)
def test_bad_paths_are_named(bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        static(bad)


@pytest.mark.parametrize("proposal", ["iid", "wor", "coupled"])
def test_draws_need_their_elder_siblings(proposal: ProposalKind) -> None:
    gap = [[0], [2]]
    with pytest.raises(ValueError, match=r"\[2\] is a later draw than \[1\], which is missing"):
        static(gap, proposal=proposal)
    assert static(gap).paths == [(0,), (2,)]


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "paths.json"
    for held in (GOOD, {"paths": GOOD}):
        file.write_text(json.dumps(held))
        assert static(str(file)).paths == static(GOOD).paths
    with pytest.raises(ValueError, match=r"tree\.paths=.*nowhere\.json: no such file"):
        static(str(tmp_path / "nowhere.json"))
    for text in ("[[0", '{"tree": 1}', "3"):
        file.write_text(text)
        with pytest.raises(ValueError, match=rf"tree\.paths={file}"):
            static(str(file))
    file.write_text("[[0], [0, 0.5]]")
    with pytest.raises(ValueError, match=r"\[0, 0\.5\] must be a list of ranks"):
        static(str(file))


def test_any_order_gives_one_tree() -> None:
    expected = grown(static(GOOD))
    assert len(expected) == len(GOOD)
    for order in itertools.islice(itertools.permutations(GOOD), 0, 720, 97):
        assert grown(static(list(order))) == expected


def test_ranks_choose_the_children() -> None:
    table = TableDrafter(2).table

    def nth(token: int, rank: int) -> int:
        return int(table[token].argsort(descending=True)[rank])

    first, second = nth(3, 0), nth(3, 1)
    expected = {(first,), (second,), (first, nth(first, 0)), (first, nth(first, 1))}
    expected |= {(second, nth(second, 0)), (first, nth(first, 1), nth(nth(first, 1), 0))}
    assert set(grown(static(GOOD))) == expected


def test_a_rank_may_stand_alone() -> None:
    table = TableDrafter(2).table
    second = int(table[3].argsort(descending=True)[1])
    assert grown(static([[1]])) == [(second,)]


def test_depth_and_rows_cut_the_longest_and_last() -> None:
    whole = grown(static(GOOD))
    assert len(grown(static(GOOD, depth=2))) == 5
    assert len(grown(static(GOOD), depth=1)) == 2
    kept = grown(static(GOOD), rows=4)
    assert len(kept) == 3
    assert set(kept) < set(whole)
    assert len(grown(static(GOOD, rows=3))) == 2


def test_rows_cut_the_end_of_the_list_and_keep_parents() -> None:
    """A calibrated file lists the paths of most worth first: a deep one may outlive a shallow."""
    listed = [[0], [0, 0], [0, 0, 0], [1], [1, 1], [2]]
    whole = [(0,), (0, 0), (0, 0, 0), (1,), (1, 1), (2,)]

    def kept(given: list[list[int]], rows: int, **more: Any) -> set[tuple[int, ...]]:
        depths = sorted(map(len, grown(static(given, rows=rows, **more))))
        first = [path for path in whole if list(path) in given][: rows - 1]
        assert depths == sorted(map(len, first))
        return set(first)

    for rows in range(2, 8):
        assert len(kept(listed, rows)) == min(rows - 1, 6)
    # A child that is listed before its parent brings it along, a draw its elder sibling.
    assert len(grown(static([[1, 0], [0], [1]], rows=2))) == 1
    assert sorted(map(len, grown(static([[1, 0], [0], [1]], rows=3)))) == [1, 2]
    assert len(grown(static([[2], [0], [1]], rows=3, proposal="wor"))) == 2


class Narrow:
    """Two candidates at most, of which the second is missing under odd tokens."""

    def expand(self, frontier: Frontier) -> list[Proposal]:
        second = torch.where(frontier.tokens % 2 == 0, 7, -1)
        return [Proposal(candidates=torch.stack([frontier.tokens + 1, second], dim=1))]

    def native(self, budget: Budget) -> list[list[int]]:
        return []


def test_ranks_beyond_the_proposal_are_left_out() -> None:
    given = [[0], [1], [2], [5], [0, 0], [0, 1], [2, 0]]
    assert grown(static(given), source=Narrow()) == [(4,), (4, 5), (4, 7)]
