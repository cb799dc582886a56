"""The base of drafters that look continuations up: a trie on the host, tables on the device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from specframe.drafter.base import Continuation, Retrieval
from specframe.records import Context
from specframe.testing.defaults import component
from specframe.testing.draft_checks import builder, paths
from specframe.types import Budget, TargetOutput

NOTHING = TargetOutput(logits=torch.zeros(1, 1))
HELD = [
    Continuation([4, 5, 6], 1.0),
    Continuation([4, 7], 5.0),
    Continuation([2], 3.0),
    Continuation([4, 5, 8], 1.0),
]
ALL = [(2,), (4,), (4, 5), (4, 5, 6), (4, 5, 8), (4, 7)]


class Held(Retrieval):
    """Knows what it is told."""

    def __init__(self, held: Sequence[Continuation]) -> None:
        self.held = held
        self.asked = 0

    def continuations(self) -> Sequence[Continuation]:
        self.asked += 1
        return self.held


def begun(held: Sequence[Continuation] = HELD) -> Held:
    """A drafter on some context."""
    made = Held(held)
    made.begin(Context.of([1, 2, 3], torch.device("cpu")), NOTHING)
    return made


def grown(drafter: Held, tree: str, **numbers: object) -> list[tuple[int, ...]]:
    """Token paths of one draft."""
    made = builder()
    policy = component("tree", tree, proposal="place", **numbers)
    policy.grow(made, drafter, Budget(rows=policy.max_nodes, depth=policy.depth))
    return paths(made.build())


def test_every_tree_takes_what_fits_its_shape() -> None:
    assert grown(begun(), "native") == ALL
    assert grown(begun(), "dynamic", top_k=4) == ALL
    assert grown(begun(), "chain") == [(4,), (4, 7)]
    assert grown(begun(), "static", paths=[[0], [1], [0, 1], [0, 1, 0]]) == [
        (2,),
        (4,),
        (4, 5),
        (4, 5, 6),
    ]


def test_one_look_up_a_step() -> None:
    drafter = begun()
    grown(drafter, "dynamic")
    assert drafter.asked == 1
    grown(drafter, "dynamic")
    assert drafter.asked == 2


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic", "native"])
def test_nothing_known_nothing_drafted(tree: str) -> None:
    assert grown(begun([]), tree) == []
    assert grown(begun([Continuation([])]), tree) == []


def test_a_full_trie_lacks_the_lightest() -> None:
    drafter = begun([Continuation([1, 1], 1.0), Continuation([2, 2], 9.0)])
    drafter.max_trie_nodes = 2  # type: ignore[misc]
    assert grown(drafter, "dynamic") == [(2,), (2, 2)]


def test_scores_are_shares_of_the_parent() -> None:
    made = builder()
    component("tree", "dynamic", proposal="place").grow(made, begun(), Budget(rows=16, depth=5))
    nodes = made.nodes()
    scores = dict(zip(nodes.tokens.tolist(), nodes.scores.exp().tolist(), strict=True))
    assert scores[4] == pytest.approx(0.7)
    assert scores[7] == pytest.approx(0.5)
    assert scores[2] == pytest.approx(0.3)
    assert scores[6] == pytest.approx(0.1)


def test_a_new_sequence_forgets_the_old_tables() -> None:
    drafter = begun()
    grown(drafter, "dynamic")
    drafter.begin(Context.of([3], torch.device("cpu")), NOTHING)
    assert drafter._tables is None
