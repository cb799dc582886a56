"""One verify pass of the target over the drafts of several lanes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from specframe.cache.base import CacheManager
from specframe.target.base import DependsOnReach, Target, output_of, verified, verify_rows
from specframe.types import Draft, Rows, TargetOutput


def score_lanes(
    target: Target, drafts: Mapping[int, Draft], cache: CacheManager, *, taps: Sequence[str] = ()
) -> list[TargetOutput]:
    """The verify pass over the drafts of several lanes, in their order; their slots are reserved.

    It is one pass, unless lanes enter at different layers or are computed by different tables;
    those that go alike share one.
    """
    if len(drafts) == 1:
        ((lane, draft),) = drafts.items()
        return [target.score(draft, cache.alone(lane), taps=taps)]
    groups: dict[Hashable, list[int]] = {}
    for lane, draft in drafts.items():
        entered = None if draft.resume is None else draft.resume.layer
        groups.setdefault((entered, table_of(target, cache.reach[lane])), []).append(lane)
    found: dict[int, TargetOutput] = {}
    for lanes in groups.values():
        found |= _scored(target, {lane: drafts[lane] for lane in lanes}, cache, taps)
    return [found[lane] for lane in drafts]


def table_of(target: Target, reach: int | None) -> Hashable:
    """What a text that may reach so many positions is computed by; None where it is no matter."""
    if reach is None or not isinstance(target, DependsOnReach):
        return None
    return target.table_key(reach)


def _scored(
    target: Target, drafts: Mapping[int, Draft], cache: CacheManager, taps: Sequence[str]
) -> dict[int, TargetOutput]:
    """One verify pass over the drafts of lanes."""
    parts = [
        verify_rows(draft, cache.alone(lane), target.gives.max_positions)
        for lane, draft in drafts.items()
    ]
    rows = joined_rows(parts, list(drafts))
    out = verified(target, rows, cache, next(iter(drafts.values())), taps)
    assert out.logits is not None
    sizes = [len(part.slots) for part in parts]
    split = {name: tap.split(sizes) for name, tap in out.taps.items()}
    return {
        lane: output_of(logits, {name: tap[place] for name, tap in split.items()}, draft)
        for place, ((lane, draft), logits) in enumerate(
            zip(drafts.items(), out.logits.split(sizes), strict=True)
        )
    }


def joined_rows(parts: Sequence[Rows], lanes: Sequence[int]) -> Rows:
    """The rows of several lanes, part b of lane lanes[b], as one pass.

    Fresh columns of a lane are counted from its own committed length, so `sees` is padded.
    """
    masks = [part.sees for part in parts if part.sees is not None]
    assert len(masks) == len(parts), "each part says what its rows see"
    extent = max(mask.shape[1] for mask in masks)
    names = ("positions", "slots", "prefix", "tokens", "hidden")
    joined: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in names
        if getattr(parts[0], name) is not None
    }
    return Rows(
        **joined,
        sees=torch.cat([functional.pad(mask, (0, extent - mask.shape[1])) for mask in masks]),
        lanes=tuple(lanes),
        sizes=tuple(len(part.slots) for part in parts),
    )
