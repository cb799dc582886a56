"""Nodes of a growing draft, run through layers of the target itself in the target's own cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.target.base import Target
from specframe.types import Draft, Frontier, Rows

_ORPHAN = -2  # id of a node whose parent was never fed: it equals no node of a draft


@dataclass(frozen=True)
class Fed:
    """Nodes that were fed: ids [F], slots of the path from the root down to each [F, depth + 1],
    and what left the last layer run [F, H]."""

    nodes: Tensor
    path: Tensor
    hidden: Tensor

    @property
    def slots(self) -> Tensor:
        """[F] where the nodes' own keys lie."""
        return self.path[:, -1]


class Feeding:
    """Feeds frontiers to the target level by level, each node seeing the committed text, its
    ancestors and itself. The parents of a frontier must have been fed before.

    count: nodes fed in this step. once: no depth came in two calls, so no node came twice.
    in_order: their slots follow the cache's length without a gap.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def begin(self, cache: object) -> None:
        """Start a sequence on the target's cache."""
        assert isinstance(cache, CacheManager)
        self.cache = cache
        self.forget()

    def forget(self) -> None:
        """Start a step."""
        self._levels: dict[int, Fed] = {}
        self.count = 0
        self.once = self.in_order = True

    def feed(
        self,
        frontier: Frontier,
        *,
        layers: tuple[int, int] | None = None,
        skip: frozenset[str] = frozenset(),
    ) -> Tensor | None:
        """[F, V] logits of the nodes; None where the level above was not fed."""
        if frontier.depth == 0 and self.cache.extent == self.cache.length:
            self.forget()  # nothing is reserved, so what was fed belongs to an earlier step
        above = self._above(frontier)
        if above is None:
            return None
        path, known = above
        cache, count = self.cache, len(frontier)
        self.in_order &= cache.extent == cache.length + self.count
        self.once &= frontier.depth not in self._levels
        self.count += count
        slots = cache.reserve(count)
        path = torch.cat([path, slots[:, None]], dim=1)
        visible = torch.zeros((count, cache.width), dtype=torch.bool, device=slots.device)
        visible[:, : cache.length] = True
        visible.scatter_(1, path, True)
        rows = Rows(
            tokens=frontier.tokens.clamp_min(0),  # a dead node has no token
            positions=torch.full_like(slots, cache.length + frontier.depth),
            slots=slots,
            visible=visible,
        )
        every = torch.arange(count, device=slots.device)
        out = self._target.forward(rows, cache, layers=layers, skip=skip, want=every)
        nodes = torch.where(known, frontier.nodes, _ORPHAN)
        self._add(frontier.depth, Fed(nodes=nodes, path=path, hidden=out.hidden))
        return out.logits

    @property
    def alone(self) -> bool:
        """Whether nothing else is reserved, and `in_order`."""
        return self.in_order and self.cache.extent == self.cache.length + self.count

    def give_back(self, draft: Draft) -> Draft:
        """The draft for a pass over all layers, what was fed being scratch."""
        if draft.slots is None and not self.alone:
            # Others have put keys in between: theirs must stay.
            draft = replace(draft, slots=self.cache.reserve(draft.num_rows))
        elif draft.slots is None:
            self.cache.discard()
        self.forget()
        return draft

    def all(self) -> Fed:
        """Everything fed in this step, `path` being the own slot alone."""
        held = list(self._levels.values())
        return Fed(
            nodes=torch.cat([level.nodes for level in held]),
            path=torch.cat([level.path[:, -1:] for level in held]),
            hidden=torch.cat([level.hidden for level in held]),
        )

    def _above(self, frontier: Frontier) -> tuple[Tensor, Tensor] | None:
        """Slots of the path down to each parent [F, depth], and whether it was fed [F]."""
        if frontier.depth == 0:
            return frontier.nodes.new_empty((len(frontier), 0)), frontier.nodes >= 0
        level = self._levels.get(frontier.depth - 1)
        if level is None:
            return None
        match = frontier.parents[:, None] == level.nodes
        return level.path[match.int().argmax(1)], match.any(1)

    def _add(self, depth: int, fed: Fed) -> None:
        held = self._levels.get(depth)
        if held is not None:
            fed = Fed(
                nodes=torch.cat([held.nodes, fed.nodes]),
                path=torch.cat([held.path, fed.path]),
                hidden=torch.cat([held.hidden, fed.hidden]),
            )
        self._levels[depth] = fed
