"""A draft put together from the levels that a builder grew: pruned, padded, with its ancestors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specframe.types import Draft, DrawCall, Frontier


def assembled(
    levels: Sequence[Frontier],
    calls: tuple[DrawCall, ...],
    *,
    rows: Tensor | None,
    pad_to: int,
) -> Draft:
    """The draft of these levels, the root's first, in order of node ids.

    rows [n]: ids of the nodes that become rows, the root left out; None: all of them. Dead rows are
    appended up to `pad_to` rows.
    """
    joined = {
        name: torch.cat([getattr(level, name) for level in levels])
        for name in ("tokens", "parents", "alive")
    }
    depths = torch.cat([torch.full_like(level.nodes, level.depth) for level in levels])
    parents, origin = joined["parents"], torch.arange(len(depths), device=depths.device)
    row_of = origin
    if rows is not None:
        origin = torch.cat([origin[:1], rows])
        row_of = torch.full_like(depths, -1)
        row_of[origin] = torch.arange(len(origin), device=origin.device)
        parents = torch.where(parents >= 0, row_of[parents.clamp_min(0)], parents)[origin]
    alive = joined["alive"][origin]
    dead = pad_to - len(origin)
    draft = Draft(
        tokens=padded(joined["tokens"][origin].clamp_min(0), dead, 0),
        parents=padded(torch.where(alive, parents, -1), dead, -1),
        alive=padded(alive, dead, False),
        depths=padded(torch.where(alive, depths[origin], 0), dead, 0),
        origin=padded(origin, dead, -1),
        row_of=row_of,
        depth=levels[-1].depth,
        chain=all(len(level) == 1 for level in levels),
        draws=calls if any(call.how != "place" for call in calls) else None,
        calls=calls,
    )
    # Made here, so that a captured function that grows a draft makes it too.
    return replace(draft, seen=draft.ancestors())


def padded(values: Tensor, count: int, fill: int) -> Tensor:
    """values [N] with `count` more entries, where there are any to add."""
    if count <= 0:
        return values
    return torch.cat([values, values.new_full((count,), fill)])
