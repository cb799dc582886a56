"""Feeds the nodes of a growing draft through a network, level by level.

The idea is the same for every network: a frontier gets fresh columns of a cache; each node sees the
committed text, the columns of its ancestors, and its own. So the path of columns down to a node is
its parent's path and its own column, and the mask is that path written into rows of zeros. Draft
models, EAGLE's networks, and partial layers of the target itself differ only in what they run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.types import Draft, Fresh, Frontier, Rows

_ORPHAN = -2  # id of a node whose parent was never fed: it equals no node of a draft


class Columns(Protocol):
    """What feeding asks of a cache: fresh columns."""

    def reserve(self, sizes: Sequence[int]) -> Fresh:
        """As `CacheManager.reserve`."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """Nodes of one depth that were fed."""

    nodes: Tensor  # [F] ids
    columns: Tensor  # [F, ...] fresh columns of the path down to each, its own last
    slots: Tensor  # [F] where the nodes' own keys lie
    states: Tensor  # [F, ...] what the network left of them for their children

    @classmethod
    def of_root(cls, frontier: Frontier, states: Tensor) -> Level:
        """The level of a root [1] whose key is committed, with its states [1, ...]."""
        nothing = frontier.nodes.new_empty((1, 0))
        return cls(nodes=frontier.nodes, columns=nothing, slots=nothing[0], states=states)

    def slot_of(self, node: Tensor) -> Tensor:
        """[1] slot of a node of this level."""
        return self.slots[(self.nodes == node).int().argmax(0, keepdim=True)]

    def places(self, frontier: Frontier) -> Tensor:
        """[F'] where the parents of a frontier one level down stand here."""
        return (frontier.parents[:, None] == self.nodes).int().argmax(1)

    def joined(self, other: Level | None) -> Level:
        """Both, where a policy expands one depth in several calls."""
        if other is None:
            return self
        names = ("nodes", "columns", "slots", "states")
        return Level(
            **{name: torch.cat([getattr(other, name), getattr(self, name)]) for name in names}
        )


# (rows of a frontier, states of the parents) -> states of the frontier's nodes, [F, ...].
Run = Callable[[Rows, Tensor], Tensor]


class Feeding:
    """The levels of one draft.

    length: committed columns, [] where it must be no host integer. root: the level of the root,
    where its key is committed already; None: the root is fed like any node, at depth 0.
    """

    def __init__(self, cache: Columns, *, length: int | Tensor, root: Level | None) -> None:
        self._cache, self._length = cache, length
        self.levels: dict[int, Level] = {} if root is None else {0: root}
        self._root_is_fed = root is None
        self.count = 0  # nodes that were fed
        self.once = True  # no depth came in two calls, so no node came twice

    def feed(self, frontier: Frontier, run: Run) -> Tensor | None:
        """States of a frontier's nodes by `run`; None where the level above was not fed."""
        depth, count = frontier.depth, len(frontier)
        above = self._above(frontier)
        if above is None:
            return None
        path, states, fed = above
        fresh = self._cache.reserve([count])
        path = torch.cat([path, fresh.columns[:, None]], dim=1)
        self.once &= depth not in self.levels
        self.count += count
        sees = torch.zeros((count, fresh.extent), dtype=torch.bool, device=path.device)
        rows = Rows(
            tokens=frontier.tokens.clamp_min(0),  # a dead node has no token
            positions=self._positions(fresh.columns, depth),
            slots=fresh.slots,
            prefix=self._positions(fresh.columns, 0 if self._root_is_fed else 1),
            sees=sees.scatter_(1, path, True),
        )
        states = run(rows, states)
        nodes = frontier.nodes if fed is None else torch.where(fed, frontier.nodes, _ORPHAN)
        level = Level(nodes=nodes, columns=path, slots=fresh.slots, states=states)
        self.levels[depth] = level.joined(self.levels.get(depth))
        return states

    def all(self) -> Level:
        """Every node that was fed, each with its own column alone."""
        levels = [level for depth, level in self.levels.items() if depth or self._root_is_fed]
        return Level(
            nodes=torch.cat([level.nodes for level in levels]),
            columns=torch.cat([level.columns[:, -1:] for level in levels]),
            slots=torch.cat([level.slots for level in levels]),
            states=torch.cat([level.states for level in levels]),
        )

    def _positions(self, like: Tensor, depth: int) -> Tensor:
        """[F] the position of nodes of a depth."""
        ahead = depth if self._root_is_fed else depth - 1
        if isinstance(self._length, Tensor):
            return (self._length + ahead).repeat(len(like))
        return torch.full_like(like, self._length + ahead)

    def _above(self, frontier: Frontier) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Columns of the path down to each parent [F, depth], the parents' states, and whether they
        were fed [F] (None: they were)."""
        if frontier.depth == 0 and self._root_is_fed:
            nothing = frontier.nodes.new_empty((len(frontier), 0))
            return nothing, nothing, None
        level = self.levels.get(frontier.depth - 1)
        if level is None:
            return None
        places = level.places(frontier)
        fed = None
        if self._root_is_fed:
            fed = (frontier.parents[:, None] == level.nodes).any(1)
        return level.columns[places], level.states[places], fed


class TargetFeeding:
    """Feeds frontiers through layers of the target itself, in the target's own cache.

    The parents of a frontier must have been fed before. What is fed is scratch: it is forgotten, or
    handed to the verify pass, at the end of the step.
    """

    def __init__(self) -> None:
        self.cache: CacheManager
        self._feeding: Feeding | None = None
        self._in_order = True

    def begin(self, cache: CacheManager) -> None:
        """Start a sequence on the target's cache."""
        self.cache = cache
        self.forget()

    def forget(self) -> None:
        """Start a step."""
        self._feeding, self._in_order = None, True

    @property
    def count(self) -> int:
        """Nodes that were fed in this step."""
        return 0 if self._feeding is None else self._feeding.count

    @property
    def once(self) -> bool:
        """Whether no depth came in two calls, so that no node came twice."""
        return self._feeding is None or self._feeding.once

    @property
    def alone(self) -> bool:
        """Whether nothing else is reserved in the cache, so that columns lie in order."""
        return self._in_order and self._reserved == self.count

    @property
    def _reserved(self) -> int:
        return self.cache.extents[0] - self.cache.lengths[0]

    def feed(self, frontier: Frontier, run: Run) -> Tensor | None:
        """States of the nodes by `run`; None where the level above was not fed."""
        if frontier.depth == 0 and not self._reserved:
            self.forget()  # nothing is reserved, so what was fed belongs to an earlier step
        if self._feeding is None:
            self._feeding = Feeding(self.cache, length=self.cache.lengths[0], root=None)
        self._in_order &= self._reserved == self.count
        return self._feeding.feed(frontier, run)

    def all(self) -> Level:
        """Everything that was fed in this step, each node with its own column alone."""
        assert self._feeding is not None, "nothing was fed"
        return self._feeding.all()

    def give_back(self, draft: Draft) -> Draft:
        """The draft for a pass over all layers, what was fed being scratch."""
        if draft.slots is None and not self.alone:
            # Others have put keys in between: theirs must stay.
            fresh = self.cache.reserve([draft.num_rows])
            draft = replace(draft, slots=fresh.slots, columns=fresh.columns)
        elif draft.slots is None:
            self.cache.discard(0)
        self.forget()
        return draft
