"""A trie of weighted continuations on the host, and its tables on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class TrieNode:
    """`weight` is the sum over the branches that pass here; children in order of insertion."""

    token: int
    weight: float = 0.0
    children: dict[int, TrieNode] = field(default_factory=dict)

    def ranked(self) -> list[TrieNode]:
        """Children by weight, heaviest first, ties by insertion."""
        return sorted(self.children.values(), key=lambda child: -child.weight)


class Trie:
    """Branches that share prefixes are merged. `num_nodes` leaves the root out."""

    def __init__(self, *, max_nodes: int) -> None:
        self.root = TrieNode(-1)
        self.num_nodes = 0
        self._max_nodes = max_nodes

    def add(self, branch: Sequence[int], weight: float = 1.0) -> None:
        """Insert a branch, as far as there is room for new nodes."""
        node = self.root
        node.weight += weight
        for token in branch:
            child = node.children.get(token)
            if child is None:
                if self.num_nodes >= self._max_nodes:
                    return
                child = node.children[token] = TrieNode(token)
                self.num_nodes += 1
            child.weight += weight
            node = child

    def levels(self) -> list[list[tuple[TrieNode, list[TrieNode]]]]:
        """Per depth, each inner node with its ranked children."""
        levels, layer = [], [self.root]
        while layer:
            pairs = [(node, node.ranked()) for node in layer if node.children]
            if pairs:
                levels.append(pairs)
            layer = [child for _, children in pairs for child in children]
        return levels


@dataclass(frozen=True)
class TrieTables:
    """Children by handle: tokens [n, K] (-1: none), scores [n, K] log-weights, children [n, K].

    widths[d] is the most children of any node at depth d (host). The last handle is a node without
    children, where every miss goes; handle 0 is the root.
    """

    tokens: Tensor
    scores: Tensor
    children: Tensor
    widths: list[int]

    @classmethod
    def of(cls, trie: Trie, device: torch.device) -> TrieTables:
        """Tables of a trie, in one copy to the device each."""
        levels = trie.levels()
        widths = [max(len(children) for _, children in level) for level in levels]
        size, k = trie.num_nodes + 2, max(widths, default=0)
        tokens = [[-1] * k for _ in range(size)]
        scores = [[-math.inf] * k for _ in range(size)]
        handles = [[size - 1] * k for _ in range(size)]
        number = {id(trie.root): 0}
        for level in levels:
            for node, ranked in level:
                row = number[id(node)]
                for rank, child in enumerate(ranked):
                    number[id(child)] = len(number)
                    tokens[row][rank] = child.token
                    scores[row][rank] = math.log(child.weight / node.weight)
                    handles[row][rank] = number[id(child)]
        return cls(
            tokens=torch.tensor(tokens, dtype=torch.long, device=device),
            scores=torch.tensor(scores, dtype=torch.float64, device=device),
            children=torch.tensor(handles, dtype=torch.long, device=device),
            widths=widths,
        )

    def descend(self, handles: Tensor, tokens: Tensor) -> Tensor:
        """[F] handles of the children `tokens [F]` of `handles [F]`."""
        hit = self.tokens[handles] == tokens[:, None]
        child = self.children[handles].gather(1, hit.int().argmax(1, keepdim=True))[:, 0]
        return torch.where(hit.any(1), child, self.tokens.shape[0] - 1)
