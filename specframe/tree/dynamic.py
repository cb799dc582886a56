"""A tree grown along the most probable paths, then re-ranked as a whole."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from specframe.capture.purity import pure
from specframe.drafting.builder import TreeBuilder
from specframe.registry import Range
from specframe.tree.base import TREES, Depth, MaxNodes, ProposalKind, Source, TreePolicy
from specframe.types import Budget, Frontier


@pure
@TREES.register("dynamic")
class DynamicTree(TreePolicy):
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

    def for_trace(self) -> TreePolicy:
        """The policy that trace=full records with: it expands what smaller trees would, too."""
        return Beams(
            depth=self.depth, top_k=self.top_k, max_nodes=self.max_nodes, proposal=self.proposal
        )

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


class Beams(DynamicTree):
    """Grows the same draft, and also expands every node that a smaller `top_k` would have expanded.

    A smaller beam need not lie in a wider one: its nodes may have lost to the children of nodes
    that it never saw. So every beam from 1 to `top_k` is followed by itself over one set of nodes.
    It chooses nodes by value, and reads on the host which of them to go on with.
    """

    host_reads: int = 2 * 64  # at most: two a level

    @property
    def max_expanded(self) -> int:
        return 1 + self.top_k * (self.top_k + 1) // 2 * (self.depth - 1)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        frontier, own = builder.root, []
        members = frontier.alive.expand(self.top_k, 1)  # [top_k, F] which beam holds which node
        for _ in range(min(self.depth, budget.depth) if budget.rows > 1 else 0):
            children, places = [], []
            for proposal in source.expand(frontier):
                if proposal.width > 0:
                    children.append(builder.extend(frontier, proposal, self.top_k))
                    places.append(self._reached(members, len(children[-1]) // len(frontier)))
            if not children:
                break
            level, reached = Frontier.joined(children), torch.cat(places, dim=1)
            own.append(level.nodes[reached[-1]])
            members = self._best(level, reached)
            kept = members.any(0).nonzero()[:, 0]
            frontier, members = level.select(kept), members[:, kept]
            if not len(kept):
                break
        if own:
            self._keep(builder, torch.cat(own), min(self.max_nodes, budget.rows) - 1)

    def _reached(self, members: Tensor, width: int) -> Tensor:
        """[top_k, F * width] which children each beam sees: those of its nodes, up to its rank."""
        ranks = torch.arange(width, device=members.device)
        sizes = torch.arange(1, self.top_k + 1, device=members.device)
        seen = members[:, :, None] & (ranks < sizes[:, None])[:, None, :]
        return seen.reshape(self.top_k, -1)

    def _best(self, level: Frontier, reached: Tensor) -> Tensor:
        """[top_k, F'] the k best living children that beam k sees, ties by id."""
        able = reached & level.alive
        scores = torch.where(able, level.scores, -torch.inf)
        order = scores.sort(dim=1, descending=True, stable=True).indices
        sizes = torch.arange(1, self.top_k + 1, device=order.device)[:, None]
        first = torch.arange(order.shape[1], device=order.device) < sizes
        return torch.zeros_like(able).scatter(1, order, first) & able

    def _keep(self, builder: TreeBuilder, own: Tensor, room: int) -> None:
        """Only the rows that the tree itself has."""
        scores = builder.nodes().scores[own - 1]
        builder.prune(own[scores.sort(descending=True, stable=True).indices[:room]])
