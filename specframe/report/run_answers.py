"""What each prompt of a run took: one record, whether it was generated or benchmarked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError

ROWS, GENERATIONS = "rows.jsonl", "generations.jsonl"
PHASES = ("draft", "verify", "accept", "commit", "host")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Counts and seconds of verify steps on one side, prefill and its token left out."""

    tokens: int
    steps: int
    seconds: float
    rows: int = 0
    accepted: int = 0


@dataclass(frozen=True, kw_only=True)
class ReportedAnswer:
    """One prompt, all its turns together. key: the same prompt has the same one in other runs.

    base: plain decoding in the same process, where it was measured beside. depths: (drafted,
    reached, accepted) by depth. phases_ms: by the run's own clock, where it has one.
    """

    key: str
    category: str
    method: Cost
    base: Cost | None
    depths: Sequence[tuple[int, int, int]]
    phases_ms: dict[str, float]

    @property
    def speed(self) -> float | None:
        """Tokens a second, over those of plain decoding on this prompt if it was measured."""
        mine = _speed(self.method)
        if self.base is None or mine is None:
            return mine
        plain = _speed(self.base)
        return None if plain is None else mine / plain

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a pass."""
        return self.method.tokens / self.method.steps if self.method.steps else None


@dataclass(frozen=True, kw_only=True)
class ReportedAnswers:
    """Those of one run, and the prompts that have none."""

    held: Sequence[ReportedAnswer]
    num_errors: int


def read_answers(folder: Path) -> ReportedAnswers | None:
    """The answers of a run's folder; None if it holds no run. Raises ConfigError for a file that
    is none of ours; a torn last line is left out."""
    if (folder / ROWS).is_file():
        return _read(folder / ROWS, _of_row)
    if (folder / GENERATIONS).is_file():
        return _read(folder / GENERATIONS, _of_generation)
    return None


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; a last line that a kill tore is left out.

    Raises ConfigError with the place of a line that is no JSON object.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                held = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: not JSON ({error})") from None
            if not isinstance(held, dict):
                raise ConfigError(f"{path}:{number}: not a JSON object")
            yield held


def _read(path: Path, make: Any) -> ReportedAnswers:
    held, errors = [], 0
    for number, line in enumerate(lines_of(path), start=1):
        if line.get("error") is not None:
            errors += 1
            continue
        try:
            held.append(make(line))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"{path}:{number}: not a line of task=generate or task=benchmark ({error!r})"
            ) from None
    return ReportedAnswers(held=held, num_errors=errors)


def _of_row(line: dict[str, Any]) -> ReportedAnswer:
    sides = line["sides"]
    method = [turn["metrics"] for turn in sides["method"]]
    base = [turn["metrics"] for turn in sides.get("baseline", [])]
    depths = [
        [(one["drafted"], one["reached"], one["accepted"]) for one in turn["depths"]]
        for turn in method
    ]
    return ReportedAnswer(
        key=f"benchmark {line['digest']}",
        category=line["category"],
        method=_cost(method),
        base=_cost(base) if base else None,
        depths=add_depths(depths),
        phases_ms={},
    )


def _of_generation(line: dict[str, Any]) -> ReportedAnswer:
    metrics = line["metrics"]
    names = ("num_drafted", "num_opportunities", "num_accepted")
    words = json.dumps([line["prompt"], line.get("turn", 0)])
    return ReportedAnswer(
        key=f"generate {hashlib.sha256(words.encode()).hexdigest()[:16]}",
        category=line.get("category") or "",
        method=_cost([metrics]),
        base=None,
        depths=[
            (one[names[0]], one[names[1]], one[names[2]]) for one in metrics["acceptance_by_depth"]
        ],
        phases_ms={name: metrics.get(f"{name}_ms", 0.0) for name in PHASES},
    )


def _cost(turns: Sequence[dict[str, Any]]) -> Cost:
    return Cost(
        tokens=sum(one["num_step_tokens"] for one in turns),
        steps=sum(one["num_steps"] for one in turns),
        seconds=sum(one["decode_s"] for one in turns),
        rows=sum(one["num_draft_rows"] for one in turns),
        accepted=sum(one["num_accepted"] for one in turns),
    )


def add_costs(costs: Sequence[Cost]) -> Cost:
    """All of them together."""
    return Cost(
        tokens=sum(one.tokens for one in costs),
        steps=sum(one.steps for one in costs),
        seconds=sum(one.seconds for one in costs),
        rows=sum(one.rows for one in costs),
        accepted=sum(one.accepted for one in costs),
    )


def add_depths(parts: Sequence[Sequence[tuple[int, int, int]]]) -> list[tuple[int, int, int]]:
    """Counts of several answers, depth by depth."""
    size = max(map(len, parts), default=0)
    return [
        (
            sum(one[depth][0] for one in parts if depth < len(one)),
            sum(one[depth][1] for one in parts if depth < len(one)),
            sum(one[depth][2] for one in parts if depth < len(one)),
        )
        for depth in range(size)
    ]


def _speed(cost: Cost) -> float | None:
    return cost.tokens / cost.seconds if cost.tokens and cost.seconds else None
