"""Which rank paths are worth their rows, given how often the guess of each rank is right.

A table [D][K] holds, for depth d + 1 and rank r, how often that guess is right where the path above
it is. The worth of a path is the product along it (Medusa, arXiv 2401.10774, section 2.3.3); an
expected acceptance length is 1 (the recovered or bonus token) plus the worth of all paths.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import torch
from torch import Tensor

RankPath = tuple[int, ...]
RankTable = Sequence[Sequence[float]]


def worth(table: RankTable, path: RankPath) -> float:
    """How often a path is right as a whole."""
    return math.prod(table[depth][rank] for depth, rank in enumerate(path))


def expected_length(table: RankTable, paths: Sequence[RankPath]) -> float:
    """Expected tokens of a verify pass over these paths, which must hold all their prefixes."""
    return 1 + sum(worth(table, path) for path in paths)


def most_worth_first(table: RankTable, paths: Sequence[RankPath]) -> list[RankPath]:
    """The order in which a tree is cut from its end: by worth, ties by (length, ranks)."""
    return sorted(paths, key=lambda path: (-worth(table, path), len(path), path))


def best_first(table: RankTable, *, max_paths: int, closed: bool) -> list[RankPath]:
    """Up to `max_paths` paths, each time the one of most worth that can be added; ties by (length,
    ranks), worthless ones left out.

    closed: an elder sibling always comes before (needed where ranks are draws). Else these are the
    best paths there are, since a child is never worth more than its parent.
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

    T(n, b), the most that n nodes below a right node give if only its children of rank >= b may be
    used, is max over y of table[b] * (1 + T'(y - 1, 0)) + T(n - y, b + 1), T' one level down. In
    the paper the table is the same at every depth; it may differ here. Elder siblings come first.
    O(D * K * max_paths^2).
    """

    def __init__(self, table: RankTable, *, max_paths: int) -> None:
        below = torch.zeros(max_paths + 1, dtype=torch.float64)  # [n] what n nodes give
        self._picks: list[list[list[int]]] = []  # by level, rank and n: nodes given to that child
        for row in reversed(table):
            below, given = _level(row, below)
            self._picks.insert(0, [sizes.tolist() for sizes in given])

    def paths(self, count: int) -> list[RankPath]:
        """The `count` paths of most expected length (fewer where the rest is worth nothing)."""
        found: list[RankPath] = []
        pending: list[tuple[RankPath, int]] = [((), count)]
        while pending:
            parent, left = pending.pop()
            if len(parent) == len(self._picks):
                continue
            for rank, sizes in enumerate(self._picks[len(parent)]):
                size = sizes[left]
                if not size:
                    break
                found.append((*parent, rank))
                pending.append((found[-1], size - 1))
                left -= size
        return sorted(found, key=lambda path: (len(path), path))


def sequoia(table: RankTable, *, max_paths: int) -> list[RankPath]:
    """The paths of most expected length by Sequoia's recursion."""
    return Sequoia(table, max_paths=max_paths).paths(max_paths)


def _level(row: Sequence[float], below: Tensor) -> tuple[Tensor, list[Tensor]]:
    """([n] the best of n nodes among children of these shares, by rank the nodes [n] of each)."""
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
