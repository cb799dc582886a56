"""A chain has one child per node and as many nodes as there is room for."""

from __future__ import annotations

import pytest

from specframe.testing.draft_checks import TableDrafter, builder, paths
from specframe.tree.chain import ChainTree
from specframe.types import Budget


def chain(depth: int) -> ChainTree:
    """A chain that is placed."""
    return ChainTree(depth=depth, max_nodes=40, proposal="place")


@pytest.mark.parametrize(
    ("depth", "rows", "room", "expected"),
    [(5, 40, 9, 5), (5, 3, 9, 2), (5, 40, 1, 1), (1, 40, 9, 1), (5, 1, 9, 0)],
)
def test_length(depth: int, rows: int, room: int, expected: int) -> None:
    made = builder()
    chain(depth).grow(made, TableDrafter(0), Budget(rows=rows, depth=room))
    draft = made.build()
    assert draft.num_rows - 1 == draft.depth == expected
    assert draft.chain


def test_each_token_is_the_likeliest_after_the_last() -> None:
    made, table = builder(root=3), TableDrafter(1)
    chain(4).grow(made, table, Budget(rows=9, depth=9))
    expected, token = [], 3
    for _ in range(4):
        token = int(table.table[token].argmax())
        expected.append(token)
    assert paths(made.build())[-1] == tuple(expected)
