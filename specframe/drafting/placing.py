"""Places a trie of tokens, known on the host, as the nodes of a draft."""

from __future__ import annotations

import torch

from specframe.drafting.builder import TreeBuilder
from specframe.lookup.trie import Trie


def place_trie(builder: TreeBuilder, trie: Trie) -> None:
    """Every node of the trie becomes a row, children by weight."""
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
