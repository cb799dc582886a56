"""A tree grown along the most probable paths, then re-ranked as a whole."""

from __future__ import annotations

from typing import Annotated

from specframe.binding import Range
from specframe.tree.base import TREES, Depth, MaxNodes, ProposalKind, Source, TreePolicy
from specframe.tree.builder import TreeBuilder
from specframe.types import Budget, Frontier


@TREES.register("dynamic")
class Dynamic(TreePolicy):
    """Expand the top_k best nodes of each level by path probability, keep the best of all.

    Equation: score(node) = sum of log q along its path; the beam of the next level and the final
    max_nodes - 1 nodes are the best by (score descending, node id ascending). A child never scores
    above its parent and has a larger id, so ancestors are always kept.
    Chooses nodes by value, so drawn nodes may only be verified by accept=match.
    Paper: EAGLE-2, arXiv 2406.16858 (its depth d is d + 1 here, its total_tokens is max_nodes).
    """

    decides_before_draw = False

    def __init__(
        self,
        *,
        depth: Depth,
        top_k: Annotated[int, Range(1, 256)],
        max_nodes: MaxNodes,
        proposal: ProposalKind,
    ) -> None:
        super().__init__(depth=depth, max_nodes=max_nodes, proposal=proposal)
        self.top_k = top_k

    @property
    def max_expanded(self) -> int:
        return 1 + self.top_k * (self.depth - 1)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        frontier = builder.root
        for _ in range(min(self.depth, budget.depth) if budget.rows > 1 else 0):
            children = [
                builder.extend(frontier, proposal, self.top_k)
                for proposal in source.expand(frontier)
                if proposal.width > 0
            ]
            if not children:
                break
            frontier = _best(children, self.top_k)
        room = min(self.max_nodes, budget.rows) - 1
        if builder.num_nodes - 1 > room:
            nodes = builder.nodes()
            order = nodes.scores.sort(descending=True, stable=True).indices
            builder.prune(nodes.nodes[order[:room]])


def _best(children: list[Frontier], k: int) -> Frontier:
    """The k best nodes of one level, in order of score, ties by id."""
    level = Frontier.joined(children)
    if len(level) <= k:
        return level
    return level.select(level.scores.sort(descending=True, stable=True).indices[:k])
