"""The records that travel between the axes."""

from __future__ import annotations

import torch

from specframe.records import Context, InnerLoop
from specframe.testing.draft_checks import check_visibility
from specframe.types import Draft, Frontier, Proposal
from tests.small_models import Composition, toy

CPU = torch.device("cpu")


def draft() -> Draft:
    """Root 9 with children 1 and 2; 1 has child 3; row 3 is dead; row 5 is padding."""
    return Draft(
        tokens=torch.tensor([9, 1, 2, 0, 3, 0]),
        parents=torch.tensor([-1, 0, 0, -1, 1, -1]),
        alive=torch.tensor([True, True, True, False, True, False]),
        depths=torch.tensor([0, 1, 1, 0, 2, 0]),
        origin=torch.tensor([0, 1, 2, 3, 4, -1]),
        row_of=torch.tensor([0, 1, 2, 3, 4]),
        depth=2,
        chain=False,
    )


def test_ancestors() -> None:
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
    assert draft().ancestors().int().tolist() == expected
    check_visibility(draft())


def test_path_tokens_go_from_the_top_down() -> None:
    rows = torch.tensor([4])
    assert draft().path_tokens(rows, 2).tolist() == [[1, 3]]
    assert draft().path_tokens(torch.tensor([1, 2]), 1).tolist() == [[1], [2]]
    assert draft().path_tokens(torch.tensor([0]), 0).shape == (1, 0)


def test_width_of_a_proposal() -> None:
    logits, few = torch.zeros(2, 7), torch.zeros(2, 3, dtype=torch.long)
    assert Proposal(logits=logits).width == 7
    assert Proposal(candidates=few).width == 3
    assert Proposal(law=logits, drawn=few).width == 3
    assert Proposal().width == 0


def test_a_frontier_can_be_picked_from() -> None:
    whole = Frontier(
        nodes=torch.tensor([4, 5, 6]),
        tokens=torch.tensor([1, 2, 3]),
        parents=torch.tensor([0, 0, 1]),
        alive=torch.tensor([True, False, True]),
        scores=torch.tensor([-1.0, -2.0, -3.0]),
        paths=torch.tensor([[1], [2], [3]]),
        depth=1,
    )
    part = whole.select(torch.tensor([2, 0]))
    assert len(part) == 2
    assert part.nodes.tolist() == [6, 4]
    assert part.paths.tolist() == [[3], [1]]
    assert (part.alive.all(), part.depth) == (True, 1)


def test_a_context_holds_the_same_on_host_and_device() -> None:
    context = Context.of([1, 2, 3], CPU)
    for token in range(200):
        context.extend([token, token + 1])
    assert context.ids.tolist() == context.tokens
    assert (len(context), context.prompt_length) == (403, 3)
    context.truncate(5)
    assert context.ids.tolist() == context.tokens == [1, 2, 3, 0, 1]
    context.extend([8])
    assert context.ids.tolist() == [1, 2, 3, 0, 1, 8]


def test_a_decoding_is_an_inner_loop() -> None:
    assert isinstance(Composition(target=toy()).decoding(4), InnerLoop)
