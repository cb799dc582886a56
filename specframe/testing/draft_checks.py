"""Drafts by hand: a builder under a short context, a random source, and what every draft obeys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specframe.drafting.builder import TreeBuilder
from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.lookup.foresight import Prospect
from specframe.planning.cost_table import CostTable, DraftCost
from specframe.types import Budget, Draft, Frontier, How, Proposal

VOCAB = 11
# Rows are nearly free and guesses good, so that a tree pays.
CHEAP = CostTable(
    rows=(1, 32),
    contexts=(64,),
    pass_ms=((10.0, 11.0),),
    drafts={"table": DraftCost(root_ms=0.1, widths=(1,), level_ms=(0.1,))},
    right={"table": ((0.5, 0.2, 0.1, 0.05),) * 6},
)


def plain_sampling(temperature: float = 0.0, processors: Sequence[Any] = ()) -> Sampling:
    """A law that is the softmax of the logits (its arg max at temperature 0)."""
    return Sampling(
        temperature=temperature,
        processors=list(processors),  # type: ignore[arg-type]
        warpers=[],  # type: ignore[arg-type]
        vocabulary=VOCAB,
    )


def builder(
    *, how: How = "place", temperature: float = 1.0, root: int = 3, processors: Sequence[Any] = ()
) -> TreeBuilder:
    """A builder under a short context."""
    return TreeBuilder(
        context=torch.tensor([1, 2, root]),
        sampling=plain_sampling(temperature, processors),
        rng=Streams(seed=5),
        step=3,
        how=how,
    )


class TableDrafter:
    """A drafter for tree tests: logits by last token from a random table, branches at random."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        shape = (VOCAB, VOCAB)
        self.table = 2 * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        """Logits [F, VOCAB]."""
        return [Proposal(logits=self.table[frontier.tokens.clamp_min(0)])]

    def prospects(self) -> Sequence[Prospect]:
        """A network that must be asked."""
        return [Prospect(source="table", expand=lambda frontier: self.expand(frontier))]

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        """Six branches as long as the budget, some with a common start."""
        size = (6, budget.depth)
        return torch.randint(0, 3, size, generator=self.generator).tolist()


def children(draft: Draft) -> dict[int, list[int]]:
    """Alive rows by parent row."""
    found: dict[int, list[int]] = {}
    for row, (parent, alive) in enumerate(
        zip(draft.parents.tolist(), draft.alive.tolist(), strict=True)
    ):
        if row and alive:
            found.setdefault(parent, []).append(row)
    return found


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Token paths of the alive rows but the root, sorted."""
    found: dict[int, tuple[int, ...]] = {0: ()}
    for row in range(1, draft.num_rows):
        if draft.alive[row]:
            parent = int(draft.parents[row])
            found[row] = (*found[parent], int(draft.tokens[row]))
    return sorted(path for row, path in found.items() if row)


def check_draft(draft: Draft, budget: Budget, *, padded: bool = False) -> None:
    """The invariants of a draft; `padded` allows dead rows past the budget."""
    alive, parents, depths = draft.alive.tolist(), draft.parents.tolist(), draft.depths.tolist()
    assert (parents[0], alive[0], depths[0]) == (-1, True, 0)
    assert padded or draft.num_rows <= budget.rows
    assert draft.depth <= max(budget.depth, 0)
    for row in range(1, draft.num_rows):
        if alive[row]:
            assert 0 <= parents[row] < row, "a parent comes before its children"
            assert alive[parents[row]], "nothing lives under a dead row"
            assert depths[row] == depths[parents[row]] + 1 <= draft.depth
    for siblings in children(draft).values():
        tokens = draft.tokens[siblings].tolist()
        assert len(set(tokens)) == len(tokens), "alive siblings differ"
    check_visibility(draft)
    check_ids(draft)
    widths = [len(siblings) for siblings in children(draft).values()]
    assert not draft.chain or max(widths, default=0) <= 1


def check_visibility(draft: Draft) -> None:
    """Rows see themselves and what is above them; dead ones see and are seen by nobody else."""
    seen = draft.ancestors()
    for row in range(draft.num_rows):
        above, node = {row}, row
        while draft.alive[row] and int(draft.parents[node]) >= 0:
            node = int(draft.parents[node])
            above.add(node)
        assert set(seen[row].nonzero()[:, 0].tolist()) == above


def check_ids(draft: Draft) -> None:
    """origin and row_of are inverse to each other; padding has no id."""
    origin = draft.origin.tolist()
    ids = [node for node in origin if node >= 0]
    assert origin[0] == 0
    assert len(set(ids)) == len(ids)
    for row, node in enumerate(origin):
        if node >= 0:
            assert int(draft.row_of[node]) == row
    held = [row for row in draft.row_of.tolist() if row >= 0]
    assert len(held) == len(ids), "row_of points to rows that exist"
