"""What each prompt of a run took, in one form for task=generate and task=benchmark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.measure.clock import PHASES

ROWS, GENERATIONS = "rows.jsonl", "generations.jsonl"
METHOD, BASELINE = "method", "baseline"  # names of sides in the rows of a benchmark


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Counts and seconds of the verify steps of one side. Prefill and its token are left out."""

    tokens: int  # emitted
    steps: int
    seconds: float
    rows: int = 0  # verified, roots included
    accepted: int = 0  # drafted tokens that were accepted


@dataclass(frozen=True, kw_only=True)
class ReportedAnswer:
    """One prompt, with all its turns together."""

    key: str  # the same prompt has the same key in other runs
    category: str  # "" for none
    method: Cost
    base: Cost | None  # of plain decoding in the same process; None if it was not measured
    depths: Sequence[tuple[int, int, int]]  # (drafted, reached, accepted), from depth 1 on
    phases_ms: dict[str, float]  # by the run's own clock; {} for a benchmark

    @property
    def speed(self) -> float | None:
        """Tokens a second; where plain decoding was measured on this prompt, over those of it."""
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
    """The answers of one run."""

    answers: Sequence[ReportedAnswer]
    num_errors: int  # prompts that could not be answered


def read_answers(
    folder: Path, *, side: str = METHOD, base: str | None = BASELINE
) -> ReportedAnswers | None:
    """The answers in a run's folder; None if it holds no run.

    side, base: of a benchmark, which side's answers, and the side of plain decoding beside them.
    A last line that a kill cut is left out. Raises ConfigError for a file in another format.
    """
    if (folder / ROWS).is_file():
        return _read(folder / ROWS, partial(_of_row, side=side, base=base))
    if (folder / GENERATIONS).is_file():
        return _read(folder / GENERATIONS, _of_generation)
    return None


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file. A last line that a kill cut is left out.

    Raises ConfigError with the number of a line that is no JSON object.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}:{number}: not JSON ({error})") from None
            if not isinstance(value, dict):
                raise ConfigError(f"{path}:{number}: not a JSON object")
            yield value


def _read(path: Path, make: Any) -> ReportedAnswers:
    answers, num_errors = [], 0
    for number, line in enumerate(lines_of(path), start=1):
        if line.get("error") is not None:
            num_errors += 1
            continue
        try:
            answers.append(make(line))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"{path}:{number}: not a line of task=generate or task=benchmark ({error!r})"
            ) from None
    return ReportedAnswers(answers=answers, num_errors=num_errors)


def _of_row(line: dict[str, Any], *, side: str, base: str | None) -> ReportedAnswer:
    sides = line["sides"]
    method = [turn["metrics"] for turn in sides[side]]
    plain = [turn["metrics"] for turn in sides.get(base, [])]
    depths = [
        [(answer["drafted"], answer["reached"], answer["accepted"]) for answer in turn["depths"]]
        for turn in method
    ]
    return ReportedAnswer(
        key=f"benchmark {line['digest']}",
        category=line["category"],
        method=_cost(method),
        base=_cost(plain) if plain else None,
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
            (answer[names[0]], answer[names[1]], answer[names[2]])
            for answer in metrics["acceptance_by_depth"]
        ],
        phases_ms={name: metrics.get(f"{name}_ms", 0.0) for name in PHASES},
    )


def _cost(turns: Sequence[dict[str, Any]]) -> Cost:
    return Cost(
        tokens=sum(answer["num_step_tokens"] for answer in turns),
        steps=sum(answer["num_steps"] for answer in turns),
        seconds=sum(answer["decode_s"] for answer in turns),
        rows=sum(answer["num_draft_rows"] for answer in turns),
        accepted=sum(answer["num_accepted"] for answer in turns),
    )


def add_costs(costs: Sequence[Cost]) -> Cost:
    """The sum of several costs."""
    return Cost(
        tokens=sum(answer.tokens for answer in costs),
        steps=sum(answer.steps for answer in costs),
        seconds=sum(answer.seconds for answer in costs),
        rows=sum(answer.rows for answer in costs),
        accepted=sum(answer.accepted for answer in costs),
    )


def add_depths(parts: Sequence[Sequence[tuple[int, int, int]]]) -> list[tuple[int, int, int]]:
    """The sums of the counts of several answers, depth by depth."""
    size = max(map(len, parts), default=0)
    return [
        (
            sum(answer[depth][0] for answer in parts if depth < len(answer)),
            sum(answer[depth][1] for answer in parts if depth < len(answer)),
            sum(answer[depth][2] for answer in parts if depth < len(answer)),
        )
        for depth in range(size)
    ]


def _speed(cost: Cost) -> float | None:
    return cost.tokens / cost.seconds if cost.tokens and cost.seconds else None
