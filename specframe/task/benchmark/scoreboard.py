"""Rows of a benchmark as numbers: by category and overall, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specframe.measure.bootstrap import Bootstrap, efficiency, mean, point_estimate, pooled, speedup
from specframe.measure.clock import PHASES
from specframe.measure.metrics import Metrics, peak_memory_bytes
from specframe.session.engine import Engine
from specframe.task.benchmark.rows import Row
from specframe.task.benchmark.sides import BASELINE, METHOD, Turn

OVERALL = "overall"


def summary(rows: Sequence[Row], *, bootstrap: Bootstrap, engine: Engine) -> dict[str, Any]:
    """What summary.json holds of rows: `overall` and `categories`, each as `Board.numbers`."""
    answered = [row for row in rows if row.error is None]
    names = list(dict.fromkeys(row.category for row in answered))
    boards = {
        name: Board([row for row in answered if row.category == name], bootstrap) for name in names
    }
    return {
        "num_errors": len(rows) - len(answered),
        "confidence": bootstrap.confidence,
        "overall": Board(answered, bootstrap).numbers() if answered else None,
        "categories": {name: board.numbers() for name, board in boards.items()},
        "peak_memory_bytes": peak_memory_bytes(engine.parts.target.device),
    }


@dataclass(frozen=True)
class Board:
    """Some rows, all of them answered."""

    rows: Sequence[Row]
    bootstrap: Bootstrap

    def numbers(self) -> dict[str, Any]:
        """Every number of these rows under its own name; `intervals` has [low, high] of some."""
        found: dict[str, Any] = {"num_prompts": len(self.rows)}
        intervals: dict[str, Any] = {}
        for name in (METHOD, BASELINE):
            if all(name in row.sides for row in self.rows):
                found[name] = self._side(name)
                intervals |= self._intervals_of(name)
        if BASELINE in found:
            for key, columns in self._ratios().items():
                statistic = efficiency if key.startswith("efficiency") else speedup
                found[key] = point_estimate(statistic, columns)
                intervals[key] = self.bootstrap.interval(statistic, columns)
        return found | self._agreement() | self._scores() | {"intervals": intervals}

    def _metrics(self, name: str) -> list[Metrics]:
        """Of each prompt, all its turns together."""
        found = []
        for row in self.rows:
            total = Metrics()
            for turn in row.sides[name]:
                total.add(turn.metrics)
            found.append(total)
        return found

    def _turns(self, name: str) -> list[Turn]:
        return [turn for row in self.rows for turn in row.sides[name]]

    def _side(self, name: str) -> dict[str, Any]:
        total = Metrics()
        prompts = self._metrics(name)
        for one in prompts:
            total.add(one)
        total.check()
        phases = [f"{phase}_ms" for phase in PHASES]
        counted = {key: held for key, held in total.as_dict().items() if key not in phases}
        turns = self._turns(name)
        peaks = [one.peak_memory_bytes for one in turns if one.peak_memory_bytes is not None]
        return {
            **counted,
            "acceptance_length_mean_over_prompts": point_estimate(mean, [_lengths(prompts)]),
            **_latency(turns),
            "peak_memory_bytes": max(peaks, default=None),
            "split": _split(turns),
            "target_logprob": _logprob(turns),
            **_starts(turns),
        }

    def _intervals_of(self, name: str) -> dict[str, Any]:
        prompts = self._metrics(name)
        at_all = [one for one in prompts if one.num_steps]
        tokens, seconds = _column(at_all, "num_step_tokens"), _column(at_all, "decode_s")
        steps = _column(at_all, "num_steps")
        interval = self.bootstrap.interval
        speed = {f"{name}.tokens_per_s": interval(pooled, [tokens, seconds])}
        if name == BASELINE:
            return speed
        return speed | {
            "acceptance_length": interval(pooled, [tokens, steps]),
            "acceptance_length_mean_over_prompts": interval(mean, [_lengths(at_all)]),
            "num_accepted_per_step": interval(pooled, [_column(at_all, "num_accepted"), steps]),
        }

    def _ratios(self) -> dict[str, list[list[float]]]:
        """Columns of each ratio, over prompts on which both sides took a step."""
        pairs = zip(self._metrics(METHOD), self._metrics(BASELINE), strict=True)
        both = [(one, other) for one, other in pairs if one.num_steps and other.num_steps]
        mine, base = [one for one, _ in both], [other for _, other in both]
        decode = [
            *(_column(mine, key) for key in ("num_step_tokens", "decode_s")),
            *(_column(base, key) for key in ("num_step_tokens", "decode_s")),
        ]
        whole = [
            *(_column(mine, key) for key in ("num_tokens", "total_s")),
            *(_column(base, key) for key in ("num_tokens", "total_s")),
        ]
        return {
            "speedup": decode,
            "speedup_end_to_end": whole,
            "efficiency": [*decode, _column(mine, "num_steps")],
        }

    def _agreement(self) -> dict[str, Any]:
        """Of the method's answers with the exact ones; nothing where none was compared."""
        pairs = [one for row in self.rows for one in row.agreements]
        if not pairs:
            return {}
        longer = sum(one.num_longer for one in pairs)
        return {
            "num_compared": len(pairs),
            "num_same_text": sum(one.same for one in pairs),
            "agreement_prefix": sum(one.num_common for one in pairs) / longer,
            "agreement_tokens": sum(one.num_equal for one in pairs) / longer,
        }

    def _scores(self) -> dict[str, Any]:
        """Share of right answers by score and side, and of how many."""
        found: dict[str, Any] = {}
        for score in sorted({score for row in self.rows for score in row.scores}):
            judged = [row.scores[score] for row in self.rows if score in row.scores]
            shares = {
                name: sum(one[name] for one in judged) / len(judged)
                for name in (METHOD, BASELINE)
                if all(name in one for one in judged)
            }
            found[score] = {"num_judged": len(judged), **shares}
        return {"scores": found} if found else {}


def _column(prompts: Sequence[Metrics], name: str) -> list[float]:
    return [float(getattr(one, name)) for one in prompts]


def _lengths(prompts: Sequence[Metrics]) -> list[float]:
    lengths = [one.acceptance_length for one in prompts]
    return [one for one in lengths if one is not None]


def _latency(turns: Sequence[Turn]) -> dict[str, float | None]:
    """Time to the first token, and between tokens: a step's time shared by the tokens it emitted,
    every token counted; between steps: what one waits for the next piece of text."""
    firsts = [1e3 * one.first_s for turn in turns for one in turn.rounds]
    steps, tokens = [], []
    for turn in turns:
        counts = np.array(turn.step_tokens, dtype=int)
        for one in turn.rounds:
            steps.append(np.array(one.step_ms))
            tokens.append(np.repeat(steps[-1] / np.maximum(counts, 1), counts))
    return {
        "first_token_p50_ms": _percentile(firsts, 50),
        "first_token_p95_ms": _percentile(firsts, 95),
        "between_tokens_p50_ms": _percentile(np.concatenate(tokens), 50),
        "between_tokens_p95_ms": _percentile(np.concatenate(tokens), 95),
        "between_steps_p50_ms": _percentile(np.concatenate(steps), 50),
        "between_steps_p95_ms": _percentile(np.concatenate(steps), 95),
    }


def _percentile(numbers: Any, percent: float) -> float | None:
    return float(np.percentile(numbers, percent)) if len(numbers) else None


def _split(turns: Sequence[Turn]) -> dict[str, float] | None:
    """Milliseconds by phase in the synchronising runs, their wall time, and the share covered."""
    splits = [turn.split for turn in turns if turn.split is not None]
    if not splits:
        return None
    phases = {name: sum(one.phases[name] for one in splits) for name in splits[0].phases}
    wall = sum(one.wall_ms for one in splits)
    held = {f"{name}_ms": spent for name, spent in phases.items()}
    return {**held, "wall_ms": wall, "covered": sum(phases.values()) / wall}


def _starts(turns: Sequence[Turn]) -> dict[str, Any]:
    """Apart, the answers that began cold and with what earlier prompts left; {} where none is."""
    found: dict[str, Any] = {}
    for name, warm in (("cold", False), ("warm", True)):
        total, mine = Metrics(), [turn for turn in turns if turn.warm is warm]
        for turn in mine:
            total.add(turn.metrics)
        if mine:
            rates = {"acceptance_length": total.acceptance_length}
            found[name] = {"num_answers": len(mine), **rates, "tokens_per_s": total.tokens_per_s}
    return {"starts": found} if found else {}


def _logprob(turns: Sequence[Turn]) -> float | None:
    """Mean over all tokens, in nats."""
    held = [(one.target_logprob, len(one.tokens)) for one in turns]
    known = [(mean, count) for mean, count in held if mean is not None]
    total = sum(count for _, count in known)
    return sum(mean * count for mean, count in known) / total if total else None
