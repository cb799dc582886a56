"""All sides of a benchmark that compares several: composed, measured, and told of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from specframe.prompts.reader import PromptRecord
from specframe.task.base import Job
from specframe.task.benchmark.compared import Comparing, PeerSide
from specframe.task.benchmark.comparison import judge, lines_of
from specframe.task.benchmark.comparison_tables import tables_of
from specframe.task.benchmark.footprint import footprint
from specframe.task.benchmark.gaps import host_gaps
from specframe.task.benchmark.passes import Passes, passes_of
from specframe.task.benchmark.rows import Row
from specframe.task.benchmark.sides import BASELINE, METHOD, Side
from specframe.task.benchmark.tables import terminal
from specframe.task.benchmark.verdict import BenchmarkVerdict


class Lineup:
    """held: the run's own sides; entries: of task.compare; rows: of the passes that are timed, None
    to leave passes and memory out. sides: all of them, in order. Raises ConfigError."""

    def __init__(
        self, job: Job, held: Sequence[Side], *, entries: Sequence[str], rows: Sequence[int] | None
    ) -> None:
        self._job = job
        self._rows = rows
        plain = {BASELINE} & {side.name for side in held}
        for side in held:
            side.drafter = "none" if side.name == BASELINE else job.config["drafter"]["name"]
            side.exact = METHOD if side.drafter == "none" and not plain else next(iter(plain), None)
        self._found = Comparing(job, entries, held=held).found
        self.sides = [*held, *self._found.sides]
        self._machine: dict[str, Any] | None = None
        self._passes: list[Passes] = []
        for entry, reason in self._found.left_out.items():
            sys.stderr.write(f"specframe: benchmark: {entry} is left out: {reason}\n")

    def settings(self) -> dict[str, Any]:
        """What rows depend on beyond the configuration: the sides that are there."""
        return {"sides": [side.name for side in self.sides]}

    def measure(self, record: PromptRecord, *, gaps: bool) -> None:
        """Passes, memory and, behind a prompt, gaps: once all prompts are answered."""
        if self._rows is not None:
            capacity = self._job.config["cache"].get("capacity")
            found = self._found.peers
            self._passes = passes_of(self.sides, self._rows, found, capacity=capacity)
        ours = [side for side in self.sides if gaps and not isinstance(side, PeerSide)]
        self._machine = {
            "gaps": {side.name: _gaps(side, record) for side in ours},
            "memory": None if self._rows is None else footprint(self._job.overrides),
        }

    def told(
        self, rows: Sequence[Row], said: BenchmarkVerdict
    ) -> tuple[dict[str, Any], list[Table | str]]:
        """(what summary.json holds of it, what is printed); adds to what is said."""
        lines = lines_of(rows, self.sides, self._job.config)
        judge(lines, self.sides, said)
        left_out = self._found.left_out
        held = {
            "sides": [one.as_dict() for one in lines],
            "left_out": left_out,
            "passes": [one.as_dict() for one in self._passes],
            "machine": self._machine,
        }
        tables: list[Table | str] = []
        if lines:
            width = terminal().width
            tables = tables_of(lines, self._machine, self._passes, width=width)
        return held, [*tables, *(f"left out: {one}: {why}" for one, why in left_out.items())]


def _gaps(side: Side, record: PromptRecord) -> float | None:
    side.begin()
    return host_gaps(side.engine, side.encode(record.turns[:1]))
