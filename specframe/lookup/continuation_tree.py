"""The likeliest continuations of a context by how often they occurred, as a tree.

Best-first search: the probability of a node is its parent's times count(node) / count(parent), so
it never exceeds the parent's. A heap of all children of the nodes taken so far therefore yields the
nodes of the whole tree in falling order of probability, without looking at any other node. This is
how SuffixDecoding (arXiv 2411.04975) grows its drafts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class ContextCounts(Protocol):
    """Something that knows how often contexts occur and which tokens follow them.

    A location is the source's own handle of a context: only the source that gave it reads it.
    """

    def count(self, location: Any) -> int:
        """How often the context at `location` occurs, at least once."""

    def children(self, location: Any, min_count: float = 0.0) -> Sequence[tuple[int, int, Any]]:
        """(token, count, location) of each token that follows at least `min_count` times."""


@dataclass(slots=True)
class ContinuationNode:
    """A drafted token."""

    token: int
    parent: int  # index of its parent among the nodes, -1 for the root
    depth: int  # 1 for a child of the root
    probability: float  # of the whole path down to this node
    rest: float  # what its drafted children leave of that probability


@dataclass
class ContinuationTree:
    """Drafted tokens in the order in which they were taken, parents before children."""

    nodes: list[ContinuationNode] = field(default_factory=list)
    score: float = 0.0  # sum of the nodes' probabilities: how many of them are expected to be right

    def branches(self) -> list[list[int]]:
        """The tokens from the root down to each node."""
        paths: list[list[int]] = []
        for node in self.nodes:
            above = paths[node.parent] if node.parent >= 0 else []
            paths.append([*above, node.token])
        return paths


def likeliest_continuations(
    source: ContextCounts,
    location: Any,
    *,
    total: int,
    max_nodes: int,
    max_depth: int,
    min_probability: float,
) -> ContinuationTree:
    """The most probable nodes after the context at `location`, taken best first.

    total: how often that context occurs. Nodes below `min_probability` are left out. Of two nodes
    of the same probability the one that was met first is taken first.
    """
    tree = ContinuationTree()
    heap: list[tuple[float, int, int, int, Any]] = []
    num_pushed = 0  # the heap compares it where probabilities are equal
    index, probability, depth = -1, 1.0, 0
    while len(tree.nodes) < max_nodes:
        if depth < max_depth:
            # A little less than the bound, so that rounding leaves no node out.
            min_count = min_probability * total / probability - 1e-9
            for token, count, child in source.children(location, min_count):
                num_pushed += 1
                entry = (-probability * count / total, num_pushed, index, token, child)
                heapq.heappush(heap, entry)
        if not heap:
            break
        negative, _, parent, token, location = heapq.heappop(heap)
        probability, total = -negative, source.count(location)
        above = tree.nodes[parent] if parent >= 0 else None
        depth = 1 if above is None else above.depth + 1
        if above is not None:
            above.rest -= probability
        tree.score += probability
        index = len(tree.nodes)
        tree.nodes.append(ContinuationNode(token, parent, depth, probability, probability))
    return tree
