"""A trie of weighted continuations on the host, and its tables on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class TrieNode:
    """A token of one or more branches; its children are in the order of insertion."""

    token: int
    weight: float = 0.0  # sum of the weights of the branches that pass here
    children: dict[int, TrieNode] = field(default_factory=dict)

    def ranked(self) -> list[TrieNode]:
        """The children by falling weight; of equal ones the one inserted first comes first."""
        return sorted(self.children.values(), key=lambda child: -child.weight)


class Trie:
    """Weighted branches, of which common prefixes are merged."""

    def __init__(self, *, max_nodes: int) -> None:
        self.root = TrieNode(-1)
        self.num_nodes = 0  # without the root
        self._max_nodes = max_nodes

    def add(self, branch: Sequence[int], weight: float = 1.0) -> None:
        """Insert a branch, or as much of it as there is room for new nodes."""
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
        """By depth, each node that has children, with its ranked children."""
        levels, layer = [], [self.root]
        while layer:
            pairs = [(node, node.ranked()) for node in layer if node.children]
            if pairs:
                levels.append(pairs)
            layer = [child for _, children in pairs for child in children]
        return levels


@dataclass(frozen=True)
class TrieTables:
    """A trie as tensors, so that all nodes of a frontier are looked up in one operation.

    A handle is a node's row in the tables; handle 0 is the root. The last handle is a node without
    children, to which every miss leads.
    """

    tokens: Tensor  # [n, K] tokens of the children, -1 where there is none
    scores: Tensor  # [n, K] float64 log of a child's share of its parent's weight
    children: Tensor  # [n, K] handles of the children
    widths: list[int]  # by depth: the most children of any node there (on the host)

    @classmethod
    def of(cls, trie: Trie, device: torch.device) -> TrieTables:
        """The tables of a trie, each copied to the device once."""
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
        """[F] handles: of each node `handles [F]`, its child with the token `tokens [F]`."""
        hit = self.tokens[handles] == tokens[:, None]
        child = self.children[handles].gather(1, hit.int().argmax(1, keepdim=True))[:, 0]
        return torch.where(hit.any(1), child, self.tokens.shape[0] - 1)
