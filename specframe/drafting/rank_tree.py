"""Grows the nodes of given rank paths: [0, 2] is the third child of the first child."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specframe.drafting.builder import TreeBuilder
from specframe.tree.base import dealt
from specframe.types import Frontier, Proposal

RankPath = tuple[int, ...]


def grow_ranks(
    builder: TreeBuilder,
    expand: Callable[[Frontier], Sequence[Proposal]],
    paths: Sequence[RankPath],
) -> list[RankPath]:
    """Add the nodes of `paths` (each parent among them); returns those of the draft's rows after
    the root, in their order. A level is one call of `expand`; what it has no children for is left
    out, and where several sources answer they take the ranks in turn."""
    places: dict[RankPath, int] = {(): 0}
    frontier, kept, rows = builder.root, [], []
    for depth in range(1, max(map(len, paths), default=0) + 1):
        level = [path for path in paths if len(path) == depth and path[:-1] in places]
        inner = sorted({path[:-1] for path in level})
        if not inner:
            break
        frontier = frontier.select(_index([places[path] for path in inner], frontier))
        here, first, grid, children = set(level), builder.num_nodes, [], []
        for proposal, ranks in dealt(expand(frontier), 1 + max(path[-1] for path in level)):
            own = [(*path, rank) for path in inner for rank in ranks]
            wanted = _index([path in here for path in own], frontier).view(len(inner), -1)
            children.append(builder.extend(frontier, proposal, len(ranks), wanted=wanted))
            grid += own
        if not children:
            break
        frontier = Frontier.joined(children)
        places = {path: place for place, path in enumerate(grid) if path in here}
        kept += [first + place for place in places.values()]
        rows += list(places)
    builder.prune(_index(kept, frontier))
    return rows


def _index(places: Sequence[int] | Sequence[bool], frontier: Frontier) -> Tensor:
    kind = torch.bool if any(one is True or one is False for one in places) else torch.long
    return _constant(tuple(places), kind, frontier.nodes.device)


@functools.lru_cache(maxsize=1024)
def _constant(places: tuple[int, ...], kind: torch.dtype, device: torch.device) -> Tensor:
    """Kept, as numbers from the host have to be waited for; nobody writes into it."""
    with torch.inference_mode(False):
        return torch.tensor(places, dtype=kind, device=device)
