"""The contract of a tree policy: it decides which nodes a draft gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol, runtime_checkable

from specframe.drafting.builder import TreeBuilder
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


class TreePolicy(ABC):
    """Grows a draft within a budget."""

    # Whether a node exists never depends on a drawn value; then any rule may judge drawn nodes.
    decides_before_draw: bool = True
    needs_native: bool = False  # it takes the drafter's own branches
    chain_only: bool = False  # no node has two children
    host_reads: int = 0  # waits for the device while one draft grows

    def __init__(self, *, depth: int, max_nodes: int, proposal: ProposalKind) -> None:
        self.depth = depth  # longest drafted path
        self.max_nodes = max_nodes  # rows of the verify pass, root included
        self.proposal = proposal  # how nodes are made from logits; `auto` is resolved before

    @property
    def max_expanded(self) -> int:
        """Most nodes that one draft hands to `expand`, over all its frontiers."""
        return self.max_nodes

    def begin(self, context: Context) -> None:
        """A sequence starts: forget what was learnt of the one before."""

    @abstractmethod
    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        """Add nodes to the builder, at most budget.rows - 1 of them, budget.depth deep."""

    def observe(self, record: StepRecord) -> None:
        """Learn from a finished step."""


@runtime_checkable
class Explains(Protocol):
    """A policy that says in words why it drafts as it does."""

    explanation: str


def explanation_of(tree: TreePolicy) -> str | None:
    """Why a policy drafts as it does, for people; None: it does not say."""
    return tree.explanation if isinstance(tree, Explains) else None


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
