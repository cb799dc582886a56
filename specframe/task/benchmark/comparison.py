"""Several sides beside each other: what each took, beside plain decoding and beside peers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specframe.measure.metrics import Metrics
from specframe.task.benchmark.compared import PeerSide, label_of
from specframe.task.benchmark.rows import Row
from specframe.task.benchmark.sides import METHOD, Side, Turn
from specframe.task.benchmark.verdict import BenchmarkVerdict, must_be_exact


@dataclass(frozen=True, kw_only=True)
class Line:
    """One side over all prompts; seconds are sums of the medians over rounds.

    speedup: tokens/s with prefill, over plain decoding of the same target by us; over_peer: over
    the first peer that does the same; speedup_decode: tokens/s of verify steps alone, over plain
    decoding's; efficiency: of that, what acceptance_length allows. outside: share of the seconds
    outside of the target's forward. steps: ms of a step by phase, from answers of their own with a
    clock that waits. A drafter that is told the text (synthetic) has no time of its own, so that
    only decoding says something.
    """

    name: str
    label: str
    peer: bool
    drafter: str | None
    synthetic: bool
    seconds: float
    num_tokens: int
    tokens_per_s: float | None
    num_forwards: int | None
    acceptance_length: float | None
    outside: float | None
    exact: str | None
    num_texts: int
    num_same_text: int | None
    speedup: float | None
    speedup_decode: float | None
    efficiency: float | None
    over_peer: float | None = None
    steps: dict[str, float] = field(default_factory=dict)
    categories: dict[str, float] = field(default_factory=dict)  # speedup_decode of each

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def lines_of(rows: Sequence[Row], sides: Sequence[Side], config: dict[str, Any]) -> list[Line]:
    """A line a side, from rows that were answered; peers are those that do the same as a side."""
    rows = [row for row in rows if row.error is None]
    if not rows:
        return []
    found = [_line(rows, side, label_of(side, config)) for side in sides]
    speeds = {one.name: one.tokens_per_s for one in found}
    lines = []
    for side, one in zip(sides, found, strict=True):
        like = None if one.peer or one.synthetic else _peer_of(side, sides)
        over = None if like is None else _ratio(one.tokens_per_s, speeds[like])
        lines.append(Line(**{**vars(one), "over_peer": over}))
    return lines


def judge(lines: Sequence[Line], sides: Sequence[Side], said: BenchmarkVerdict) -> None:
    """A side of ours that must give the exact text and did not is a failure."""
    rounding = {side.name: side.engine.parts.runtime.weights.lossy for side in sides}
    for one, side in zip(lines, sides, strict=True):
        if one.peer or one.num_same_text in (None, one.num_texts) or one.name == METHOD:
            continue
        text = f"{one.label}: {one.num_texts - (one.num_same_text or 0)} of {one.num_texts} texts"
        text += " differ from plain decoding's"
        if rounding[one.name] != rounding[one.exact or one.name]:
            said.sentences.append(f"{text}, whose weights are rounded otherwise")
        elif must_be_exact(side.engine):
            said.failures.append(f"{text}; this rule must give them")
        else:
            said.sentences.append(text)


def _line(rows: Sequence[Row], side: Side, label: str) -> Line:
    turns = _turns(rows, side.name)
    total = _total(turns)
    exact = None if side.exact is None else _turns(rows, side.exact)
    plain = None if exact is None else _total(exact)
    pairs = [] if exact is None else list(zip(turns, exact, strict=True))
    decode = _ratio(total.tokens_per_s, None if plain is None else plain.tokens_per_s)
    inside = _forward_s(turns)
    ends = total.tokens_per_s_end_to_end
    told = total.synthetic
    return Line(
        name=side.name,
        label=label,
        peer=isinstance(side, PeerSide),
        drafter=side.drafter,
        synthetic=told,
        seconds=total.total_s,
        num_tokens=total.num_tokens,
        tokens_per_s=None if told else ends,
        num_forwards=total.num_target_forwards or None,
        acceptance_length=total.acceptance_length,
        outside=None if inside is None or told else 1 - inside / total.total_s,
        exact=side.exact,
        num_texts=len(turns),
        num_same_text=None if exact is None else sum(a.tokens == b.tokens for a, b in pairs),
        speedup=None if plain is None or told else _ratio(ends, plain.tokens_per_s_end_to_end),
        speedup_decode=decode,
        efficiency=_ratio(decode, total.acceptance_length),
        steps=_steps(turns),
        categories=_categories(rows, side),
    )


def _peer_of(side: Side, sides: Sequence[Side]) -> str | None:
    """Name of the first peer on the same target that does what this side does."""
    for one in sides:
        same = one.drafter == side.drafter and one.exact == side.exact
        if isinstance(one, PeerSide) and same:
            return one.name
    return None


def _categories(rows: Sequence[Row], side: Side) -> dict[str, float]:
    found: dict[str, float] = {}
    if side.exact is None:
        return found
    for name in dict.fromkeys(row.category for row in rows):
        own = [row for row in rows if row.category == name]
        mine, plain = (_total(_turns(own, one)).tokens_per_s for one in (side.name, side.exact))
        ratio = _ratio(mine, plain)
        if ratio is not None:
            found[name] = ratio
    return found


def _steps(turns: Sequence[Turn]) -> dict[str, float]:
    """Milliseconds of a step by phase, prefill left out."""
    splits = [(turn.split, turn.metrics.num_steps) for turn in turns if turn.split is not None]
    count = sum(steps for _, steps in splits)
    if not count:
        return {}
    phases = [name for name in splits[0][0].phases if name != "prefill"]
    return {name: sum(one.phases[name] for one, _ in splits) / count for name in phases}


def _forward_s(turns: Sequence[Turn]) -> float | None:
    """Seconds inside of the target's forward: the sum of medians over rounds."""
    spent = [[one.forward_s for one in turn.rounds] for turn in turns]
    known = [[one for one in rounds if one is not None] for rounds in spent]
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
