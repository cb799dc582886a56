"""The tree that a retrieval drafter already knows: whole branches, placed as they are."""

from __future__ import annotations

from specframe.drafting.builder import TreeBuilder
from specframe.drafting.placing import place_trie
from specframe.lookup.trie import Trie
from specframe.tree.base import TREES, Depth, MaxNodes, ProposalKind, Source, TreePolicy
from specframe.types import Budget


@TREES.register("native")
class NativeTree(TreePolicy):
    """Merges the branches of `drafter.native` into a tree, best branch first while there is room.

    Decides before any draw (there is none: nodes are placed). Needs a drafter with `native`.
    """

    needs_native: bool = True

    def __init__(self, *, depth: Depth, max_nodes: MaxNodes, proposal: ProposalKind) -> None:
        super().__init__(depth=depth, max_nodes=max_nodes, proposal=proposal)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        room = Budget(rows=min(self.max_nodes, budget.rows), depth=min(self.depth, budget.depth))
        if room.rows < 2 or room.depth < 1:
            return
        trie = Trie(max_nodes=room.rows - 1)
        for branch in source.native(room):
            trie.add(branch[: room.depth])
        place_trie(builder, trie)
