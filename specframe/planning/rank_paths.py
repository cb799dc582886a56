"""Which rank paths are worth their rows, given how often the guess of each rank is right.

A rank path names a node by the ranks of the guesses that lead to it. A table [D][K] says, for depth
d + 1 and rank r, how often that guess is right where the path above it is. The worth of a path is
the product along it, and the expected acceptance length of a tree is 1 (the recovered or bonus
token) plus the worth of all its paths (Medusa, arXiv 2401.10774, section 2.3.3). Taking the most
worthy path each time is best where guesses may be chosen freely; where ranks are draws, a sibling
stands only behind its elders, and Sequoia's recursion finds the best tree of every size.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.planning.cost_table import RankTable

RankPath = tuple[int, ...]


def worth(table: RankTable, path: RankPath) -> float:
    """How often a path is right as a whole."""
    return math.prod(table[depth][rank] for depth, rank in enumerate(path))


def expected_length(table: RankTable, paths: Sequence[RankPath]) -> float:
    """Expected tokens of a verify pass over these paths, which include all their prefixes."""
    return 1 + sum(worth(table, path) for path in paths)


def most_worth_first(table: RankTable, paths: Sequence[RankPath]) -> list[RankPath]:
    """The paths by falling worth, ties by (length, ranks): a tree is cut from the end of this."""
    return sorted(paths, key=lambda path: (-worth(table, path), len(path), path))


def best_first(table: RankTable, *, max_paths: int, closed: bool) -> list[RankPath]:
    """Up to `max_paths` paths, each time the one of most worth that can be added.

    Ties go by (length, ranks), and worthless paths are left out. closed: an elder sibling always
    comes before a younger one, which is needed where ranks are draws. Without it these are the best
    paths that there are, since a child is never worth more than its parent.
    """
    chosen: list[RankPath] = []
    heap: list[tuple[float, int, RankPath]] = []

    def offer(path: RankPath) -> None:
        value = worth(table, path)
        # A worthless elder may stand before a worthy younger one.
        if value > 0 or (closed and any(table[len(path) - 1][path[-1] :])):
            heapq.heappush(heap, (-value, len(path), path))

    def children(parent: RankPath) -> None:
        if len(parent) < len(table):
            width = len(table[len(parent)])
            for rank in range(min(1, width) if closed else width):
                offer((*parent, rank))

    children(())
    while heap and len(chosen) < max_paths:
        value, _, path = heapq.heappop(heap)
        chosen.append(path)
        if value < 0:
            children(path)
        if closed and path[-1] + 1 < len(table[len(path) - 1]):
            offer((*path[:-1], path[-1] + 1))
    return chosen


class Sequoia:
    """Sequoia's recursion (arXiv 2402.12374, section 3.1), solved for up to `max_paths` nodes.

    T(n, b) is the most that n nodes below a right node give if only its children of rank >= b may
    be used. Child b gets y nodes, itself included, its younger siblings share the rest:
    T(n, b) = max over y of table[b] * (1 + T'(y - 1, 0)) + T(n - y, b + 1), with T' one level down.
    In the paper the table is the same at every depth; here it may differ. Elder siblings always
    come first. It takes O(D * K * max_paths^2).
    """

    def __init__(self, table: RankTable, *, max_paths: int) -> None:
        below = torch.zeros(max_paths + 1, dtype=torch.float64)  # [n] what n nodes give
        self._picks: list[list[list[int]]] = []  # by level, rank and n: nodes given to that child
        for row in reversed(table):
            below, given = _level(row, below)
            self._picks.insert(0, [sizes.tolist() for sizes in given])

    def paths(self, count: int) -> list[RankPath]:
        """The `count` paths of most expected length, fewer where the rest is worth nothing."""
        paths: list[RankPath] = []
        pending: list[tuple[RankPath, int]] = [((), count)]
        while pending:
            parent, left = pending.pop()
            if len(parent) == len(self._picks):
                continue
            for rank, sizes in enumerate(self._picks[len(parent)]):
                size = sizes[left]
                if not size:
                    break
                paths.append((*parent, rank))
                pending.append((paths[-1], size - 1))
                left -= size
        return sorted(paths, key=lambda path: (len(path), path))


def sequoia(table: RankTable, *, max_paths: int) -> list[RankPath]:
    """The paths of most expected length by Sequoia's recursion."""
    return Sequoia(table, max_paths=max_paths).paths(max_paths)


def _level(row: Sequence[float], below: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One level of the recursion: children with these shares above subtrees worth `below` [n].

    Returns the best that n nodes give [n], and by rank how many of n nodes each child gets [n].
    """
    sizes = torch.arange(len(below))
    left = sizes[:, None] - sizes[None, :]  # [n, y] nodes left for younger siblings
    subtree = torch.zeros_like(below)  # [y] what y nodes give whose first is right
    subtree[1:] = 1 + below[:-1]
    rest = torch.zeros_like(below)  # [n] of the siblings so far
    given: list[Tensor] = []
    for share in reversed(row):
        total = share * subtree + rest[left.clamp_min(0)]
        total = torch.where((left >= 0) & (sizes > 0), total, 0.0)  # y = 0 ends the siblings
        rest, size = total.max(dim=1)
        given.insert(0, torch.where(rest > 0, size, 0))
    return rest, given
