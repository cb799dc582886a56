"""What a step costs on one machine, as it was measured there, and how often guesses are right."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

RankTable = Sequence[Sequence[float]]  # [D][K] how often the guess of each rank is right


@dataclass(frozen=True, kw_only=True)
class DraftCost:
    """Milliseconds of drafting with one source."""

    root_ms: float  # children of the root, which includes catching up with the last step's tokens
    widths: tuple[int, ...]  # numbers of nodes of a deeper level that were timed
    level_ms: tuple[float, ...]  # the children of so many nodes of one depth

    def ms(self, widths: Sequence[int]) -> float:
        """A draft whose levels have so many nodes with children; the root's level comes first."""
        if not widths:
            return 0.0
        deeper = (_between(self.widths, self.level_ms, width) for width in widths[1:])
        return self.root_ms + sum(deeper)


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """What was measured of an engine: times of its steps and the accuracy of its guesses."""

    rows: tuple[int, ...]  # of the passes that were timed, from 1 on
    contexts: tuple[int, ...]  # cached tokens behind which they were timed
    # [contexts][rows] ms of a step without its draft.
    pass_ms: tuple[tuple[float, ...], ...]
    # [contexts][rows] ms of it that are the target's forward pass.
    forward_ms: tuple[tuple[float, ...], ...] = ()
    # Whether passes are padded to the next of `rows`, so that there are no sizes between them.
    stepped: bool = False
    looks_up: bool = False  # whether the drafter has sources that look up
    lookup_ms: float = 0.0  # what all look-ups of a step take together
    drafts: Mapping[str, DraftCost] = field(default_factory=dict)  # by source that runs a network
    # By source: how often the guess of each rank is right where the path above it is right. Sources
    # that look up have no entry.
    right: Mapping[str, RankTable] = field(default_factory=dict)

    def step_ms(self, rows: int, context: int) -> float:
        """A step of `rows` rows behind `context` tokens, without its draft.

        Between the points that were measured, and beyond them, times are read off straight lines.
        """
        if self.stepped:
            rows = self.rows[min(bisect_left(self.rows, rows), len(self.rows) - 1)]
        column = [_between(self.rows, line, rows) for line in self.pass_ms]
        return _between(self.contexts, column, context)

    def draft_ms(self, source: str, widths: Sequence[int]) -> float:
        """A draft whose levels have so many nodes; a source that was not timed costs nothing."""
        cost = self.drafts.get(source)
        return 0.0 if cost is None else cost.ms(widths)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, from which `of` makes the same table."""
        return asdict(self)

    @classmethod
    def of(cls, values: Any) -> CostTable:
        """The table of these plain values. Raises ValueError if they are none."""
        try:
            drafts = {
                name: DraftCost(
                    root_ms=float(draft["root_ms"]),
                    widths=tuple(map(int, draft["widths"])),
                    level_ms=tuple(map(float, draft["level_ms"])),
                )
                for name, draft in values["drafts"].items()
            }
            table = cls(
                rows=tuple(map(int, values["rows"])),
                contexts=tuple(map(int, values["contexts"])),
                pass_ms=tuple(tuple(map(float, line)) for line in values["pass_ms"]),
                forward_ms=tuple(tuple(map(float, line)) for line in values["forward_ms"]),
                stepped=bool(values["stepped"]),
                looks_up=bool(values["looks_up"]),
                lookup_ms=float(values["lookup_ms"]),
                drafts=drafts,
                right={name: _shares(table) for name, table in values["right"].items()},
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a table of costs ({type(error).__name__}: {error})") from error
        table._check()
        return table

    def _check(self) -> None:
        shapes = [len(line) for line in self.pass_ms]
        if not self.rows or self.rows[0] != 1 or shapes != [len(self.rows)] * len(self.contexts):
            raise ValueError("not a table of costs: rows start at 1, pass_ms is [contexts][rows]")
        for axis in (self.rows, self.contexts, *(draft.widths for draft in self.drafts.values())):
            if list(axis) != sorted(set(axis)) or not axis:
                raise ValueError(f"not a table of costs: {list(axis)} does not grow")
        if min(min(line) for line in self.pass_ms) <= 0:
            raise ValueError("not a table of costs: a step takes more than 0 ms")


def _shares(table: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in table)


def _between(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at a place, on the straight line between its neighbours.

    Beyond the ends the first or last line goes on, but never below the smallest value.
    """
    if len(places) == 1:
        return values[0]
    right = min(max(bisect_left(places, at), 1), len(places) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (places[right] - places[left])
    return max(values[left] + slope * (at - places[left]), min(values))
