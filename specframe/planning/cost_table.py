"""What a step costs on one machine, as it was measured there, and how often guesses are right."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

RankTable = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class DraftCost:
    """Milliseconds of drafting with one source: root_ms for the children of the root (which also
    catches up with the tokens of the step before), level_ms[i] for those of widths[i] nodes of one
    depth below it."""

    root_ms: float
    widths: tuple[int, ...]
    level_ms: tuple[float, ...]

    def ms(self, widths: Sequence[int]) -> float:
        """A draft whose levels have so many nodes with children each, the root's first."""
        if not widths:
            return 0.0
        deeper = (_between(self.widths, self.level_ms, width) for width in widths[1:])
        return self.root_ms + sum(deeper)


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Milliseconds of a step without its draft: pass_ms[c][r] at contexts[c] tokens with rows[r];
    forward_ms[c][r] of it are the target's.

    stepped: rows are the only sizes there are, and a pass is padded to the next one. drafts: by
    source. right: by source, how often the guess of each rank is right [D][K] where the path above
    it is; sources that look up have none. looks_up: whether there are such; lookup_ms: what all
    their look-ups of a step take together.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    pass_ms: tuple[tuple[float, ...], ...]
    forward_ms: tuple[tuple[float, ...], ...] = ()
    stepped: bool = False
    looks_up: bool = False
    lookup_ms: float = 0.0
    drafts: Mapping[str, DraftCost] = field(default_factory=dict)
    right: Mapping[str, RankTable] = field(default_factory=dict)

    def step_ms(self, rows: int, context: int) -> float:
        """A step of `rows` rows behind `context` tokens, by straight lines between what was
        measured and beyond it."""
        if self.stepped:
            rows = self.rows[min(bisect_left(self.rows, rows), len(self.rows) - 1)]
        column = [_between(self.rows, line, rows) for line in self.pass_ms]
        return _between(self.contexts, column, context)

    def draft_ms(self, source: str, widths: Sequence[int]) -> float:
        """A draft with levels of so many nodes; a source that was not measured costs nothing."""
        cost = self.drafts.get(source)
        return 0.0 if cost is None else cost.ms(widths)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; `of` makes the same table of them."""
        return asdict(self)

    @classmethod
    def of(cls, values: Any) -> CostTable:
        """The table in plain values. Raises ValueError for anything else."""
        try:
            drafts = {
                name: DraftCost(
                    root_ms=float(one["root_ms"]),
                    widths=tuple(map(int, one["widths"])),
                    level_ms=tuple(map(float, one["level_ms"])),
                )
                for name, one in values["drafts"].items()
            }
            made = cls(
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
        made._check()
        return made

    def _check(self) -> None:
        shapes = [len(line) for line in self.pass_ms]
        if not self.rows or self.rows[0] != 1 or shapes != [len(self.rows)] * len(self.contexts):
            raise ValueError("not a table of costs: rows start at 1, pass_ms is [contexts][rows]")
        for axis in (self.rows, self.contexts, *(one.widths for one in self.drafts.values())):
            if list(axis) != sorted(set(axis)) or not axis:
                raise ValueError(f"not a table of costs: {list(axis)} does not grow")
        if min(min(line) for line in self.pass_ms) <= 0:
            raise ValueError("not a table of costs: a step takes more than 0 ms")


def _shares(table: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in table)


def _between(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at a place, by straight lines; beyond the ends the first or last line goes on, but
    never below the smallest value."""
    if len(places) == 1:
        return values[0]
    right = min(max(bisect_left(places, at), 1), len(places) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (places[right] - places[left])
    return max(values[left] + slope * (at - places[left]), min(values))
