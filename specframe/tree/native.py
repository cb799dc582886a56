"""The tree that a retrieval drafter already knows: whole branches, placed as they are."""

from __future__ import annotations

from typing import ClassVar

import torch

from specframe.tree.base import TREES, Depth, MaxNodes, ProposalKind, Source, TreePolicy
from specframe.tree.builder import TreeBuilder
from specframe.trie import Trie
from specframe.types import Budget


@TREES.register("native")
class Native(TreePolicy):
    """Merges the branches of `drafter.native` into a tree, best branch first while there is room.

    Decides before any draw (there is none: nodes are placed). Needs a drafter with `native`.
    """

    needs_native: ClassVar[bool] = True

    def __init__(self, *, depth: Depth, max_nodes: MaxNodes, proposal: ProposalKind) -> None:
        super().__init__(depth=depth, max_nodes=max_nodes, proposal=proposal)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        room = Budget(rows=min(self.max_nodes, budget.rows), depth=min(self.depth, budget.depth))
        if room.rows < 2 or room.depth < 1:
            return
        trie = Trie(max_nodes=room.rows - 1)
        for branch in source.native(room):
            trie.add(branch[: room.depth])
        frontier, order, kept = builder.root, [trie.root], []
        for level in trie.levels():
            parents = torch.tensor(
                [next(i for i, node in enumerate(order) if node is held) for held, _ in level],
                device=frontier.nodes.device,
            )
            width = max(len(children) for _, children in level)
            rows = [[c.token for c in kids] + [-1] * (width - len(kids)) for _, kids in level]
            first = builder.num_nodes
            tokens = torch.tensor(rows, dtype=torch.long, device=parents.device)
            placed = builder.place(frontier.select(parents), tokens)
            real = [i for i, token in enumerate(t for row in rows for t in row) if token >= 0]
            frontier = placed.select(torch.tensor(real, device=parents.device))
            order = [child for _, children in level for child in children]
            kept += [first + i for i in real]
        builder.prune(torch.tensor(kept, dtype=torch.long, device=frontier.nodes.device))
