"""The builder records what was drawn, from which law, in which order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.drafting.builder import TreeBuilder
from specframe.law.streams import Streams
from specframe.testing.draft_checks import (
    VOCAB,
    TableDrafter,
    builder,
    check_draft,
    paths,
    plain_sampling,
)
from specframe.types import Budget, DrawCall, Frontier, How, Proposal
from tests.turns import rest_slow


def logits(seed: int = 0, rows: int = 1) -> Tensor:
    """[rows, VOCAB] random scores."""
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)).double()


def only(*tokens: int) -> Tensor:
    """[1, VOCAB] scores with mass on these tokens alone."""
    held = torch.full((1, VOCAB), -torch.inf).double()
    held[0, list(tokens)] = torch.arange(len(tokens)).double()
    return held


def calls(made: TreeBuilder) -> tuple[DrawCall, ...]:
    """The draw table."""
    held = made.build().draws
    assert held is not None
    return held


def test_repeated_draws_meet_in_one_node_and_all_stay() -> None:
    made = builder()
    made.draw(made.root, Proposal(logits=only(7)), 3, "iid")
    draft, (call,) = made.build(), calls(made)
    assert paths(draft) == [(7,)]
    assert call.tokens.tolist() == [[7, 7, 7]]
    assert call.nodes.tolist() == [[1, 1, 1]]
    check_draft(draft, Budget(rows=4, depth=1))


def test_draws_without_replacement_differ_and_end_with_the_law() -> None:
    made = builder()
    made.draw(made.root, Proposal(logits=only(2, 5)), 4, "wor")
    (call,) = calls(made)
    drawn = call.tokens[0].tolist()
    assert sorted(drawn[:2]) == [2, 5]
    assert drawn[2:] == [-1, -1]
    assert len(paths(made.build())) == 2
    assert call.law is not None
    assert torch.equal(call.law, only(2, 5).softmax(-1)), "the law before any draw, not the rest"


def test_an_empty_law_yields_no_child() -> None:
    made = builder()
    law = torch.zeros(1, VOCAB).double()
    drawn = torch.full((1, 2), -1)
    made.extend(made.root, Proposal(law=law, drawn=drawn), 2)
    assert paths(made.build()) == []


@pytest.mark.parametrize("how", rest_slow(["wor", "iid"]))
def test_draws_follow_their_law(how: How) -> None:
    """First draws over 4,000 steps; without replacement also the pair's conditional law."""
    law, count = logits(3).softmax(-1)[0], 4000
    pairs = []
    for step in range(count):
        made = TreeBuilder(
            context=torch.tensor([1, 2, 3]),
            sampling=plain_sampling(1.0),
            rng=Streams(seed=2),
            step=step,
            how=how,
        )
        made.extend(made.root, Proposal(logits=logits(3)), 2)
        pairs.append(calls(made)[0].tokens[0])
    drawn = torch.stack(pairs)
    joint = law[:, None] * law[None, :]
    if how == "wor":
        joint = joint / (1 - law)[:, None]
        joint.fill_diagonal_(0.0)
    found = torch.zeros(VOCAB, VOCAB).index_put(
        (drawn[:, 0], drawn[:, 1]), torch.ones(count), accumulate=True
    )
    expected = count * joint
    seen = expected > 5
    statistic = float(((found - expected) ** 2 / expected)[seen].sum())
    spread = 5 * (2 * int(seen.sum())) ** 0.5
    assert abs(statistic - int(seen.sum())) < spread
    swapped = expected.flip(0)
    wrong = ((found - swapped) ** 2 / swapped)[swapped > 5].sum()
    assert float(wrong) > 10 * spread, "the test could not tell a wrong law"


def test_a_draw_depends_on_its_node_and_step_alone() -> None:
    first, second = builder(), builder()
    for made in (first, second):
        top = made.draw(made.root, Proposal(logits=logits(1)), 3, "wor")
        order = torch.tensor([2, 0, 1]) if made is second else torch.arange(3)
        made.draw(top.select(order), Proposal(logits=logits(2, rows=3)[order]), 2, "iid")
    assert paths(first.build()) == paths(second.build())


def test_places_left_out_are_dead_and_move_nothing() -> None:
    for how in ("place", "iid", "wor"):
        full, part = builder(how=how), builder(how=how)
        full.extend(full.root, Proposal(logits=logits(4)), 3)
        wanted = torch.tensor([[True, False, True]])
        part.extend(part.root, Proposal(logits=logits(4)), 3, wanted=wanted)
        whole, cut = full.build(), part.build()
        assert whole.num_rows == cut.num_rows == 4
        assert not cut.alive[2]
        assert set(paths(cut)) <= set(paths(whole))


def test_what_a_source_has_drawn_itself_is_recorded_as_drawn() -> None:
    law = torch.tensor([[0.5, 0.3, 0.2]]).double()
    ids = torch.tensor([4, 9, 6])
    drawn = torch.tensor([[1, 1, 2, -1]])
    made = builder(how="place")
    made.extend(made.root, Proposal(law=law, drawn=drawn, ids=ids), 4)
    (call,) = calls(made)
    assert (call.how, call.tokens.tolist()) == ("iid", [[9, 9, 6, -1]])
    assert call.nodes[0, 0] == call.nodes[0, 1]
    assert call.law is law
    assert paths(made.build()) == [(6,), (9,)]
    part = builder()
    wanted = torch.tensor([[False, True, True, True]])
    part.extend(part.root, Proposal(law=law, drawn=drawn, ids=ids), 4, wanted=wanted)
    assert calls(part)[0].tokens.tolist() == [[-1, 9, 6, -1]]


def test_id_maps() -> None:
    ids = torch.tensor([8, 1, 10])
    for how in ("place", "iid", "wor"):
        made = builder(how=how)
        made.extend(made.root, Proposal(logits=logits(5)[:, :3], ids=ids), 3)
        assert {path[0] for path in paths(made.build())} <= {8, 1, 10}
    placed = builder()
    placed.extend(placed.root, Proposal(logits=torch.tensor([[0.0, 2.0, 1.0]]), ids=ids), 1)
    assert paths(placed.build()) == [(1,)]


class Ban:
    """A processor that forbids what the prefix holds, and the token after its last."""

    def __call__(self, prefix: Tensor, scores: Tensor) -> Tensor:
        assert (prefix >= 0).all(), "a prefix has real tokens only"
        ahead = (prefix[:, -1:] + 1) % VOCAB
        return scores.scatter(1, torch.cat([prefix, ahead], dim=1), -torch.inf)


@pytest.mark.parametrize("how", ["place", "iid", "wor", "coupled"])
def test_each_node_is_processed_with_its_own_prefix(how: How) -> None:
    made, table = builder(how=how, processors=[Ban()]), TableDrafter(6)
    frontier = made.root
    for _ in range(3):
        frontier = made.extend(frontier, table.expand(frontier)[0], 3)
    found = paths(made.build())
    assert len(found) > 6
    for path in found:
        before = [1, 2, 3, *path[:-1]]
        assert path[-1] not in {*before, (before[-1] + 1) % VOCAB}
    if how != "place":
        deep = next(call for call in calls(made) if call.depth == 1)
        for law, node in zip(deep.law, deep.parents.tolist(), strict=True):  # type: ignore[arg-type]
            own = int(made.build().tokens[node])
            assert law[own] == 0
            assert law[(own + 1) % VOCAB] == 0


@pytest.mark.parametrize("how", ["place", "iid"])
def test_processors_never_see_a_dead_nodes_missing_token(how: How) -> None:
    made = builder(how=how, processors=[Ban()])
    top = made.place(made.root, torch.tensor([[4, -1]]))
    made.extend(top, Proposal(logits=logits(1, rows=2)), 2)
    assert len(paths(made.build())) >= 2


def test_processors_see_target_ids_through_a_map() -> None:
    ids = torch.tensor([3, 4, 9])  # 3 is in the prefix, 4 follows it
    made = builder(how="iid", processors=[Ban()])
    made.extend(made.root, Proposal(logits=torch.zeros(1, 3).double(), ids=ids), 2)
    assert calls(made)[0].law.tolist() == [[0.0, 0.0, 1.0]]  # type: ignore[union-attr]
    assert paths(made.build()) == [(9,)]


def test_the_law_is_what_the_warpers_leave() -> None:
    made = TreeBuilder(
        context=torch.tensor([1, 2, 3]),
        sampling=plain_sampling(0.0),
        rng=Streams(seed=0),
        step=0,
        how="iid",
    )
    made.extend(made.root, Proposal(logits=logits(7)), 2)
    law = calls(made)[0].law
    assert law is not None
    assert law.argmax() == logits(7).argmax()
    assert law.sum() == law.max() == 1


def test_banned_tokens_are_no_children() -> None:
    made = builder()
    made.extend(made.root, Proposal(logits=only(2, 5)), 4)
    assert paths(made.build()) == [(2,), (5,)]


def test_second_sources_meet_the_nodes_of_the_first() -> None:
    made = builder()
    first = made.place(made.root, torch.tensor([[4, 6]]))
    second = made.extend(made.root, Proposal(logits=only(6, 9)), 2, how="wor")
    placed, drawn = calls(made)
    draft = made.build()
    assert paths(draft) == [(4,), (6,), (9,)]
    six = int(placed.nodes[0, 1])
    assert int(drawn.nodes[drawn.tokens == 6]) == six, "both records meet in the elder node"
    assert (first.alive.sum(), second.alive.sum()) == (2, 1)
    check_draft(draft, Budget(rows=5, depth=1))


def test_meeting_goes_by_parent() -> None:
    made = builder()
    top = made.place(made.root, torch.tensor([[4, 6]]))
    made.place(top, torch.tensor([[1], [2]]))
    made.place(top, torch.tensor([[2, 1], [2, 5]]))
    assert paths(made.build()) == sorted([(4,), (4, 1), (4, 2), (6,), (6, 2), (6, 5)])


def test_scores_add_up_along_the_path() -> None:
    made = builder()
    weights = torch.tensor([[-0.25, -1.0]]).double()
    top = made.place(made.root, torch.tensor([[4, 6]]), weights)
    below = made.place(top, torch.tensor([[1], [1]]), torch.tensor([[-2.0], [0.5]]).double())
    assert top.scores.tolist() == [-0.25, -1.0]
    assert below.scores.tolist() == [-2.25, -1.0], "no weight lifts a child above its parent"
    bare = made.place(below, torch.tensor([[3, -1]]).expand(2, -1))
    assert bare.scores.tolist()[1] == -torch.inf


def test_pruned_rows_keep_their_ids() -> None:
    made = builder()
    top = made.place(made.root, torch.tensor([[4, 6, 8]]))
    made.place(top, torch.tensor([[1], [2], [3]]))
    made.prune(torch.tensor([6, 3, 1]))
    draft = made.build()
    assert draft.origin.tolist() == [0, 1, 3, 6]
    assert draft.row_of.tolist() == [0, 1, -1, 2, -1, -1, 3]
    assert paths(draft) == [(4,), (8,), (8, 3)]
    check_draft(draft, Budget(rows=4, depth=2))


def test_pruned_draws_stay_in_the_table() -> None:
    made = builder()
    made.draw(made.root, Proposal(logits=logits(8)), 3, "wor")
    made.prune(torch.tensor([2]))
    draft, (call,) = made.build(), calls(made)
    assert call.tokens.shape == (1, 3)
    assert draft.row_of[call.nodes[0]].tolist() == [-1, 1, -1]


def test_placed_drafts_have_no_draw_table() -> None:
    made = builder()
    made.place(made.root, torch.tensor([[4]]))
    assert made.build().draws is None
    made.draw(made.root, Proposal(logits=logits(9)), 1, "iid")
    assert [call.how for call in calls(made)] == ["place", "iid"]


def test_children_of_dead_nodes_are_dead() -> None:
    made = builder()
    top: Any = made.place(made.root, torch.tensor([[4, -1]]))
    below: Frontier = made.draw(top, Proposal(logits=logits(1, rows=2)), 2, "iid")
    assert below.alive.view(2, 2)[1].tolist() == [False, False]
    check_draft(made.build(), Budget(rows=9, depth=2))
