"""Several lanes, each in a one-lane cache of its own, which pass through the target together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from specframe.cache.base import CacheManager, Opened, Tenancy
from specframe.types import Fresh, Rows


class SideBySide(CacheManager):
    """A one-lane cache for each lane. A pass over rows of several lanes looks into each lane's
    cache in turn, so a row adds up the same numbers as it does alone.

    Any cache that was written for one lane serves so, a plug-in's too.
    """

    def __init__(self, lanes: Sequence[CacheManager]) -> None:
        self._lanes = tuple(lanes)
        self.lossy, self.rollback = self._lanes[0].lossy, self._lanes[0].rollback

    def alone(self, lane: int) -> CacheManager:
        return self._lanes[lane]

    @property
    def lengths(self) -> list[int]:  # type: ignore[override]
        """Committed columns of each lane."""
        return [one.lengths[0] for one in self._lanes]

    @property
    def extents(self) -> list[int]:  # type: ignore[override]
        """The same plus the columns reserved since the last commit."""
        return [one.extents[0] for one in self._lanes]

    @property
    def reach(self) -> list[int | None]:  # type: ignore[override]
        """Positions that each lane's text may come to."""
        return [one.reach[0] for one in self._lanes]

    @property
    def capacity(self) -> int | None:
        return self._lanes[0].capacity

    def open(self, lane: int, *, columns: int, device: torch.device) -> Tenancy:
        return self._lanes[lane].open(0, columns=columns, device=device)

    def close(self, lane: int) -> None:
        self._lanes[lane].close(0)

    def reserve(self, sizes: Sequence[int]) -> Fresh:
        given = [lane.reserve([size]) for lane, size in zip(self._lanes, sizes, strict=True)]
        return Fresh(
            slots=torch.cat([fresh.slots for fresh in given]),
            columns=torch.cat([fresh.columns for fresh in given]),
            extent=max(fresh.extent for fresh in given),
        )

    def opened(self, rows: Rows) -> Opened:
        lanes = [self._lanes[lane] for lane in rows.lanes]
        extents = [lane.extents[0] - lane.lengths[0] for lane in lanes]
        parts = _split(rows, extents)
        if len(parts) == 1:
            return lanes[0].opened(parts[0])
        return LanesPass([lane.opened(part) for lane, part in zip(lanes, parts, strict=True)])

    def commit(self, slots: Tensor, counts: Sequence[int], *, moved: Sequence[bool]) -> None:
        parts = slots.split(list(counts))
        for lane, part, is_moved in zip(self._lanes, parts, moved, strict=True):
            lane.commit(part, [len(part)], moved=[is_moved])

    def discard(self, lane: int) -> None:
        self._lanes[lane].discard(0)

    def truncate(self, lane: int, length: int) -> None:
        self._lanes[lane].truncate(0, length)


def _split(rows: Rows, extents: Sequence[int]) -> list[Rows]:
    """The rows of each lane as those of a pass of that lane alone; extents: its fresh columns."""
    bounds = [0, *accumulate(rows.sizes or (len(rows.slots),))]
    parts = []
    for start, stop, extent in zip(bounds, bounds[1:], extents, strict=False):
        names = ("positions", "slots", "prefix", "tokens", "hidden")
        own: dict[str, Any] = {
            name: getattr(rows, name)[start:stop]
            for name in names
            if getattr(rows, name) is not None
        }
        sees = None if rows.sees is None else rows.sees[start:stop, :extent]
        parts.append(Rows(**own, sees=sees))
    return parts


class LanesPass(Opened):
    """A pass over rows of several lanes; attention is answered lane by lane."""

    def __init__(self, lanes: Sequence[Opened]) -> None:
        self._lanes = tuple(lanes)
        self._sizes = [len(lane.positions) for lane in lanes]
        self.positions = torch.cat([lane.positions for lane in lanes])

    @property
    def lanes(self) -> Sequence[Opened]:
        return self._lanes

    def dense(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [
            lane.dense(layer, own_keys, own_values)
            for lane, own_keys, own_values in zip(
                self._lanes,
                keys.split(self._sizes, dim=2),
                values.split(self._sizes, dim=2),
                strict=True,
            )
        ]
        all_keys, all_values = zip(*pairs, strict=True)
        return torch.cat(all_keys, dim=2), torch.cat(all_values, dim=2)

    def visible(self, window: int | None = None) -> Tensor:
        masks = [lane.visible(window) for lane in self._lanes]
        joined = masks[0].new_zeros([sum(mask.shape[side] for mask in masks) for side in (0, 1)])
        row = column = 0
        for mask in masks:
            rows, columns = mask.shape
            joined[row : row + rows, column : column + columns] = mask
            row, column = row + rows, column + columns
        return joined

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        parts = zip(
            self._lanes,
            *(tensor.split(self._sizes, dim=1) for tensor in (queries, keys, values)),
            strict=True,
        )
        return torch.cat(
            [lane.attend(layer, q, k, v, scale=scale, window=window) for lane, q, k, v in parts],
            dim=1,
        )
