"""Several sides beside each other: what each took, beside plain decoding and beside peers."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specframe.measure.metrics import Metrics
from specframe.prompts.reader import PromptRecord
from specframe.task.base import Job
from specframe.task.benchmark.lineup import Lineup, label_of
from specframe.task.benchmark.machine import footprint, host_gaps
from specframe.task.benchmark.passes import PassTimes, pass_times
from specframe.task.benchmark.peer_side import PeerSide
from specframe.task.benchmark.rows import Row
from specframe.task.benchmark.sides import METHOD, Side, Turn
from specframe.task.benchmark.verdict import BenchmarkVerdict, must_be_exact


class Comparison:
    """A benchmark that compares several sides: their lineup, and what is measured besides answers.

    own: the run's own sides; entries: of task.compare; rows: of the passes that are timed, None to
    leave passes and memory out. Raises ConfigError.
    """

    def __init__(
        self, job: Job, own: Sequence[Side], *, entries: Sequence[str], rows: Sequence[int] | None
    ) -> None:
        self.lineup = Lineup(job, own, entries=entries)
        self.sides = self.lineup.sides
        self.gaps: dict[str, float | None] | None = None  # side -> idle share of its device
        self.memory: dict[str, Any] | None = None  # of `footprint`
        self.passes: list[PassTimes] = []
        self._job = job
        self._rows = rows
        for entry, reason in self.lineup.left_out.items():
            sys.stderr.write(f"specframe: benchmark: {entry} is left out: {reason}\n")

    def settings(self) -> dict[str, Any]:
        """What rows depend on beyond the configuration: the sides that are there."""
        return {"sides": [side.name for side in self.sides]}

    def measure(self, record: PromptRecord, *, gaps: bool) -> None:
        """Measure passes, memory and, behind a prompt, gaps: once all prompts are answered."""
        if self._rows is not None:
            capacity = self._job.config["cache"].get("capacity")
            engines = self.lineup.timed_engines()
            self.passes = pass_times(engines, self._rows, capacity=capacity)
        ours = [side for side in self.sides if gaps and not isinstance(side, PeerSide)]
        gap_of = {side.name: _gap(side, record) for side in ours}
        self.memory = None if self._rows is None else footprint(self._job.overrides)
        self.gaps = gap_of

    def summaries(self, rows: Sequence[Row]) -> list[SideSummary]:
        """A summary of each side over the rows that were answered, in the order of the sides."""
        answered = [row for row in rows if row.error is None]
        if not answered:
            return []
        sides, config = self.sides, self._job.config
        alone = [_summary(answered, side, label_of(side, config)) for side in sides]
        speeds = {summary.name: summary.tokens_per_s for summary in alone}
        summaries = []
        for side, summary in zip(sides, alone, strict=True):
            like = None if summary.peer or summary.synthetic else _peer_of(side, sides)
            over = None if like is None else _ratio(summary.tokens_per_s, speeds[like])
            summaries.append(replace(summary, over_peer=over))
        return summaries

    def as_dict(self, summaries: Sequence[SideSummary]) -> dict[str, Any]:
        """Plain values, for metrics.json."""
        measured = self.gaps is not None
        return {
            "sides": [asdict(summary) for summary in summaries],
            "left_out": self.lineup.left_out,
            "passes": [times.as_dict() for times in self.passes],
            "machine": {"gaps": self.gaps, "memory": self.memory} if measured else None,
        }


@dataclass(frozen=True, kw_only=True)
class SideSummary:
    """One side over all prompts. Seconds are sums of the medians over rounds.

    A drafter that is told the text (synthetic) has no time of its own, so that only its decoding
    speed says something; its end-to-end numbers are None.
    """

    name: str
    label: str  # its name in tables
    peer: bool
    drafter: str | None
    synthetic: bool
    seconds: float  # with prefill
    num_tokens: int
    tokens_per_s: float | None  # with prefill
    num_forwards: int | None
    acceptance_length: float | None
    outside: float | None  # share of the seconds outside of the target's forward
    exact: str | None  # name of the side whose text and speed it is compared with
    num_texts: int
    num_same_text: int | None
    speedup: float | None  # tokens_per_s over that of `exact`
    speedup_decode: float | None  # the same of verify steps alone
    efficiency: float | None  # speedup_decode / acceptance_length
    over_peer: float | None = None  # tokens_per_s over that of the first peer that does the same
    # Phase -> ms of a step, from answers of their own with a clock that waits for the device.
    steps: dict[str, float] = field(default_factory=dict)
    categories: dict[str, float] = field(default_factory=dict)  # category -> speedup_decode


def judge_sides(
    summaries: Sequence[SideSummary], sides: Sequence[Side], verdict: BenchmarkVerdict
) -> None:
    """Add to the verdict: a side of ours that must give the exact text and did not is a failure."""
    rounding = {side.name: side.engine.components.runtime.weights.lossy for side in sides}
    for summary, side in zip(summaries, sides, strict=True):
        same, total = summary.num_same_text, summary.num_texts
        if summary.peer or same in (None, total) or summary.name == METHOD:
            continue
        text = f"{summary.label}: {total - (same or 0)} of {total} texts"
        text += " differ from plain decoding's"
        if rounding[summary.name] != rounding[summary.exact or summary.name]:
            verdict.sentences.append(f"{text}, whose weights are rounded otherwise")
        elif must_be_exact(side.engine):
            verdict.failures.append(f"{text}; this rule must give them")
        else:
            verdict.sentences.append(text)


def _gap(side: Side, record: PromptRecord) -> float | None:
    side.begin()
    return host_gaps(side.engine, side.encode(record))


def _summary(rows: Sequence[Row], side: Side, label: str) -> SideSummary:
    turns = _turns(rows, side.name)
    total = _total(turns)
    exact = None if side.exact is None else _turns(rows, side.exact)
    plain = None if exact is None else _total(exact)
    pairs = [] if exact is None else list(zip(turns, exact, strict=True))
    decode = _ratio(total.tokens_per_s, None if plain is None else plain.tokens_per_s)
    inside = _forward_s(turns)
    end_to_end = total.tokens_per_s_end_to_end
    plain_end_to_end = None if plain is None else plain.tokens_per_s_end_to_end
    return SideSummary(
        name=side.name,
        label=label,
        peer=isinstance(side, PeerSide),
        drafter=side.drafter,
        synthetic=total.synthetic,
        seconds=total.total_s,
        num_tokens=total.num_tokens,
        tokens_per_s=None if total.synthetic else end_to_end,
        num_forwards=total.num_target_forwards or None,
        acceptance_length=total.acceptance_length,
        outside=None if inside is None or total.synthetic else 1 - inside / total.total_s,
        exact=side.exact,
        num_texts=len(turns),
        num_same_text=None if exact is None else sum(a.tokens == b.tokens for a, b in pairs),
        speedup=None if total.synthetic else _ratio(end_to_end, plain_end_to_end),
        speedup_decode=decode,
        efficiency=_ratio(decode, total.acceptance_length),
        steps=_steps(turns),
        categories=_categories(rows, side),
    )


def _peer_of(side: Side, sides: Sequence[Side]) -> str | None:
    """Name of the first peer on the same target that does what this side does."""
    for other in sides:
        same = other.drafter == side.drafter and other.exact == side.exact
        if isinstance(other, PeerSide) and same:
            return other.name
    return None


def _categories(rows: Sequence[Row], side: Side) -> dict[str, float]:
    speedups: dict[str, float] = {}
    if side.exact is None:
        return speedups
    for name in dict.fromkeys(row.category for row in rows):
        own = [row for row in rows if row.category == name]
        mine, plain = (_total(_turns(own, s)).tokens_per_s for s in (side.name, side.exact))
        ratio = _ratio(mine, plain)
        if ratio is not None:
            speedups[name] = ratio
    return speedups


def _steps(turns: Sequence[Turn]) -> dict[str, float]:
    """Milliseconds of a step by phase, prefill left out."""
    splits = [(turn.split, turn.metrics.num_steps) for turn in turns if turn.split is not None]
    count = sum(steps for _, steps in splits)
    if not count:
        return {}
    phases = [name for name in splits[0][0].phases if name != "prefill"]
    return {name: sum(split.phases[name] for split, _ in splits) / count for name in phases}


def _forward_s(turns: Sequence[Turn]) -> float | None:
    """Seconds inside of the target's forward: the sum of medians over rounds."""
    spent = [[timing.forward_s for timing in turn.rounds] for turn in turns]
    known = [[seconds for seconds in rounds if seconds is not None] for rounds in spent]
    return sum(map(statistics.median, known)) if all(known) else None


def _turns(rows: Sequence[Row], name: str) -> list[Turn]:
    return [turn for row in rows for turn in row.sides[name]]


def _total(turns: Sequence[Turn]) -> Metrics:
    total = Metrics()
    for turn in turns:
        total.add(turn.metrics)
    return total


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below
