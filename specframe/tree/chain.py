"""A chain: one child per node."""

from __future__ import annotations

from specframe.capture.purity import pure
from specframe.drafting.builder import TreeBuilder
from specframe.tree.base import TREES, Depth, MaxNodes, ProposalKind, Source, TreePolicy, widest
from specframe.types import Budget


@pure
@TREES.register("chain")
class ChainTree(TreePolicy):
    """`depth` tokens in a row, as in speculative sampling.

    Decides before any draw. Draft forwards per step: depth, for a drafter that runs one per call.
    Papers: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318.
    """

    chain_only: bool = True

    def __init__(self, *, depth: Depth, max_nodes: MaxNodes, proposal: ProposalKind) -> None:
        super().__init__(depth=depth, max_nodes=max_nodes, proposal=proposal)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        frontier = builder.root
        for _ in range(min(self.depth, budget.depth, budget.rows - 1)):
            proposal = widest(source.expand(frontier))
            if proposal is None:
                return
            frontier = builder.extend(frontier, proposal, 1)
