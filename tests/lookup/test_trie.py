"""A trie counts what passes through a node, and its tables answer for it."""

from __future__ import annotations

import math
import random

import pytest
import torch

from specframe.lookup.trie import Trie, TrieTables

CPU = torch.device("cpu")


def trie(*branches: tuple[list[int], float], room: int = 99) -> Trie:
    """A trie of weighted branches."""
    made = Trie(max_nodes=room)
    for branch, weight in branches:
        made.add(branch, weight)
    return made


def test_common_starts_are_shared() -> None:
    made = trie(([1, 2], 1.0), ([1, 3], 2.0), ([4], 0.5))
    assert made.num_nodes == 4
    one = made.root.children[1]
    assert (one.weight, [child.token for child in one.ranked()]) == (3.0, [3, 2])
    assert [child.token for child in made.root.ranked()] == [1, 4]


def test_equal_weights_keep_their_order() -> None:
    made = trie(([3], 1.0), ([1], 1.0), ([2], 1.0))
    assert [child.token for child in made.root.ranked()] == [3, 1, 2]


def test_room_ends_branches_but_counts_what_is_there() -> None:
    made = trie(([1, 2], 1.0), ([1, 5, 6], 1.0), ([7], 1.0), room=3)
    assert made.num_nodes == 3
    assert made.root.children[1].weight == 2.0
    assert list(made.root.children) == [1]


def test_levels_hold_inner_nodes_only() -> None:
    made = trie(([1, 2], 1.0), ([4], 1.0))
    assert [[node.token for node, _ in level] for level in made.levels()] == [[-1], [1]]
    assert trie().levels() == []


@pytest.mark.parametrize("seed", range(5))
def test_tables_follow_any_path(seed: int) -> None:
    dice = random.Random(seed)
    branches = [
        ([dice.randint(0, 3) for _ in range(dice.randint(1, 5))], dice.random()) for _ in range(9)
    ]
    made = trie(*branches)
    tables = TrieTables.of(made, CPU)
    for _ in range(50):
        node, handle = made.root, torch.zeros(1, dtype=torch.long)
        for token in [dice.randint(0, 3) for _ in range(5)]:
            ranked = node.ranked() if node is not None else []
            row = tables.tokens[handle][0].tolist()
            assert [held for held in row if held >= 0] == [child.token for child in ranked]
            logs = tables.scores[handle][0].tolist()[: len(ranked)]
            shares = [math.log(child.weight / node.weight) for child in ranked]
            assert logs == pytest.approx(shares)
            handle = tables.descend(handle, torch.tensor([token]))
            node = None if node is None else node.children.get(token)  # type: ignore[assignment]


def test_widths_are_those_of_each_depth() -> None:
    tables = TrieTables.of(trie(([1, 2], 1.0), ([1, 3], 1.0), ([1, 4], 1.0), ([5, 6, 7], 1.0)), CPU)
    assert tables.widths == [2, 3, 1]


def test_no_token_leads_nowhere() -> None:
    tables = TrieTables.of(trie(([1], 1.0), ([2], 1.0)), CPU)
    lost = tables.descend(torch.zeros(2, dtype=torch.long), torch.tensor([9, -1]))
    assert (tables.tokens[lost] == -1).all()
