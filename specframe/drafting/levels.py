"""The nodes of a growing draft that a feature network was fed, level by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.runtime.base import Tensors
from specframe.types import Frontier, Proposal


@dataclass(frozen=True)
class Level:
    """Nodes of one depth that were fed: ids [F], predicted states [F, H], and the slots of their
    path below the root [F, depth]."""

    nodes: Tensor
    states: Tensor
    slots: Tensor

    def parents(self, frontier: Frontier) -> Tensor:
        """[F'] where the parents of a frontier one level down stand here."""
        return (frontier.parents[:, None] == self.nodes).int().argmax(1)

    def joined(self, other: Level | None) -> Level:
        """Both, where a policy expands one depth in several calls."""
        if other is None:
            return self
        pairs = zip(
            (other.nodes, other.states, other.slots),
            (self.nodes, self.states, self.slots),
            strict=True,
        )
        return Level(*(torch.cat(pair) for pair in pairs))


class Levels:
    """The frontiers of one draft fed in turn, with all that differs between steps in tensors.

    state [1, H] of the root; length [] of the draft's cache; width: slots seen. run(fed, depth)
    gives states [F, H] (fed: see `FeatureDrafter._forward`), offer(states, depth) the proposals.
    """

    def __init__(
        self,
        *,
        state: Tensor,
        length: Tensor,
        width: int,
        run: Callable[[Tensors, int], Tensor],
        offer: Callable[[Tensor, int], Sequence[Proposal]],
    ) -> None:
        self._state, self._length = state, length
        self._columns = torch.arange(width, device=length.device)
        self._run, self._offer = run, offer
        self._levels: dict[int, Level] = {}
        self._used = 0

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        """As `Drafter.expand`."""
        if frontier.depth == 0:
            none = frontier.nodes.new_empty((1, 0))
            self._levels = {0: Level(frontier.nodes, self._state, none)}
            return self._offer(self._state, 0)
        above = self._levels.get(frontier.depth - 1)
        return [] if above is None else self._offer(self._feed(frontier, above), frontier.depth)

    def _feed(self, frontier: Frontier, above: Level) -> Tensor:
        """[F, H] predicted states of drafted nodes, each fed with its parent's own prediction."""
        depth, count, length = frontier.depth, len(frontier), self._length
        slots = length + self._columns[self._used : self._used + count]
        self._used += count
        places = above.parents(frontier)
        path = torch.cat([above.slots[places], slots[:, None]], dim=1)
        visible = (self._columns < length).repeat(count, 1).scatter_(1, path, True)
        tokens = frontier.tokens.clamp_min(0)  # a dead node has no token
        positions = (length + (depth - 1)).repeat(count)
        states = self._run((above.states[places], tokens, positions, slots, visible), depth)
        level = Level(frontier.nodes, states, path)
        self._levels[depth] = level.joined(self._levels.get(depth))
        return states
