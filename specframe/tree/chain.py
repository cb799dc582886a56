"""A chain: one child per node."""

from __future__ import annotations

from typing import ClassVar

from specframe.drafting.builder import TreeBuilder
from specframe.tree.base import TREES, Depth, MaxNodes, ProposalKind, Source, TreePolicy, widest
from specframe.types import Budget


@TREES.register("chain")
class ChainTree(TreePolicy):
    """`depth` tokens in a row, as in speculative sampling.

    Decides before any draw. Draft forwards per step: depth, for a drafter that runs one per call.
    Papers: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318.
    """

    pure: ClassVar[bool] = True
    chain_only: ClassVar[bool] = True

    def __init__(self, *, depth: Depth, max_nodes: MaxNodes, proposal: ProposalKind) -> None:
        super().__init__(depth=depth, max_nodes=max_nodes, proposal=proposal)

    @property
    def most_rows(self) -> int:
        return min(self.max_nodes, self.depth + 1)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        frontier = builder.root
        for _ in range(min(self.depth, budget.depth, budget.rows - 1)):
            proposal = widest(source.expand(frontier))
            if proposal is None:
                return
            frontier = builder.extend(frontier, proposal, 1)
