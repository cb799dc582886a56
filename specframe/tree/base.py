"""The contract of a tree policy: it decides which nodes a draft gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Protocol

from specframe.drafting.builder import TreeBuilder
from specframe.lookup.foresight import Prospect
from specframe.planning.cost_table import CostTable
from specframe.records import Context, StepRecord
from specframe.registry import Range, Registry
from specframe.types import Budget, Frontier, Proposal

ProposalKind = Literal["auto", "place", "iid", "wor", "coupled"]
Depth = Annotated[int, Range(1, 64)]
MaxNodes = Annotated[int, Range(2, 4096)]


class Source(Protocol):
    """What a policy sees of a drafter."""

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        """One proposal per source for the children of a frontier."""

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        """Whole branches, best first."""

    def prospects(self) -> Sequence[Prospect]:
        """What each of its sources could draft, known before anything is drafted."""


class TreePolicy(ABC):
    """Grows a draft within a budget.

    depth: longest drafted path; max_nodes: rows of the verify pass, root included; proposal: how
    nodes are made from logits (`auto` is resolved before the policy is built).
    decides_before_draw: whether a node's existence never depends on a drawn value.
    pure: `grow` reads nothing but its arguments and its own numbers, no value on the host, and
    leaves nothing behind, so that a runtime may record it. Not inherited.
    needs_native: it takes the drafter's own branches. chain_only: no node has two children.
    takes_aux: whether the draft just grown goes with the drafter's auxiliary rows. explanation: why
    it drafts as it does, for people.
    """

    decides_before_draw: ClassVar[bool] = True
    pure: ClassVar[bool] = False
    needs_native: ClassVar[bool] = False
    chain_only: ClassVar[bool] = False
    extra_syncs: ClassVar[int] = 0
    takes_aux: bool = True
    explanation: str | None = None

    def __init__(self, *, depth: int, max_nodes: int, proposal: ProposalKind) -> None:
        self.depth = depth
        self.max_nodes = max_nodes
        self.proposal = proposal

    @property
    def most_rows(self) -> int:
        """Most rows that a draft can have before padding."""
        return self.max_nodes

    @property
    def max_expanded(self) -> int:
        """Most nodes that one draft hands to `expand`, over all its frontiers."""
        return self.max_nodes

    def begin(self, context: Context) -> None:
        """A sequence starts: forget what was learnt of the one before."""

    def priced(self, costs: CostTable) -> TreePolicy:
        """This policy, knowing what steps cost; most do not ask."""
        return self

    @abstractmethod
    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        """Add nodes to the builder, at most budget.rows - 1 of them, budget.depth deep."""

    def observe(self, record: StepRecord) -> None:
        """Learn from a finished step."""

    def recording(self) -> TreePolicy:
        """What grows the same draft, and asks the source in passing for all that smaller trees of
        its kind would ask, where that is more. For records alone: it may read the host."""
        return self


def widest(proposals: Sequence[Proposal]) -> Proposal | None:
    """The first proposal that offers anything, for policies that follow a single source."""
    return next((one for one in proposals if one.width > 0), None)


def dealt(proposals: Sequence[Proposal], k: int) -> list[tuple[Proposal, list[int]]]:
    """Up to k ranks dealt to the proposals in turn, as far as each has children; none for nothing.

    One proposal gets 0, 1, ...; of two, the first gets 0, 2, ... while both last.
    """
    width = min(k, max((one.width for one in proposals), default=0))
    turns = [i for order in range(width) for i, one in enumerate(proposals) if order < one.width]
    found = []
    for i, one in enumerate(proposals):
        ranks = [rank for rank, turn in enumerate(turns[:k]) if turn == i]
        if ranks:
            found.append((one, ranks))
    return found


TREES: Registry[TreePolicy] = Registry("tree", "specframe.tree")
