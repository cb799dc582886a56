"""The likeliest continuations of a context by counts: a tree grown best first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Counted(Protocol):
    """Something that knows how often contexts occur and what follows them; places are its own."""

    def count(self, place: Any) -> int:
        """How often the context at `place` occurs, at least once."""

    def children(self, place: Any, least: float = 0.0) -> Sequence[tuple[int, int, Any]]:
        """(token, count, place) of what follows it at least `least` times."""


@dataclass(slots=True)
class Node:
    """A drafted token. parent: index of its parent, -1 for the root; probability: of its path.

    rest: what its drafted children leave of that probability."""

    token: int
    parent: int
    depth: int
    probability: float
    rest: float


@dataclass
class Growth:
    """Nodes in the order they were taken, parents before children; score: expected acceptance."""

    nodes: list[Node] = field(default_factory=list)
    score: float = 0.0

    def branches(self) -> list[list[int]]:
        """Tokens from the root down to each node."""
        paths: list[list[int]] = []
        for node in self.nodes:
            above = paths[node.parent] if node.parent >= 0 else []
            paths.append([*above, node.token])
        return paths


def grow(
    source: Counted,
    place: Any,
    *,
    total: int,
    max_nodes: int,
    max_depth: int,
    min_probability: float,
) -> Growth:
    """The most probable nodes after the context at `place`, one by one.

    total: occurrences of that context. The probability of a node is its parent's times count(node)
    / count(parent's context); nodes below min_probability are left out. Ties: found first.
    """
    grown = Growth()
    heap: list[tuple[float, int, int, int, Any]] = []
    found = 0
    index, probability, depth = -1, 1.0, 0
    while len(grown.nodes) < max_nodes:
        if depth < max_depth:
            # A little less, so that rounding leaves no node out.
            least = min_probability * total / probability - 1e-9
            for token, count, child in source.children(place, least):
                found += 1
                entry = (-probability * count / total, found, index, token, child)
                heapq.heappush(heap, entry)
        if not heap:
            break
        negative, _, parent, token, place = heapq.heappop(heap)
        probability, total = -negative, source.count(place)
        above = grown.nodes[parent] if parent >= 0 else None
        depth = 1 if above is None else above.depth + 1
        if above is not None:
            above.rest -= probability
        grown.score += probability
        index = len(grown.nodes)
        grown.nodes.append(Node(token, parent, depth, probability, probability))
    return grown
