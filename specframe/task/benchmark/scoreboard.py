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
    """The main part of metrics.json: `overall` and `categories`, each of `Board.numbers`."""
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
        "peak_memory_bytes": peak_memory_bytes(engine.components.target.device),
    }


@dataclass(frozen=True)
class Board:
    """The numbers of some rows, for instance those of one category."""

    rows: Sequence[Row]  # all of them answered
    bootstrap: Bootstrap

    def numbers(self) -> dict[str, Any]:
        """Every number of these rows by its name; `intervals` has [low, high] of some of them."""
        numbers: dict[str, Any] = {"num_prompts": len(self.rows)}
        intervals: dict[str, Any] = {}
        for name in (METHOD, BASELINE):
            if all(name in row.sides for row in self.rows):
                numbers[name] = self._side(name)
                intervals |= self._intervals_of(name)
        if BASELINE in numbers:
            for key, columns in self._ratios().items():
                statistic = efficiency if key.startswith("efficiency") else speedup
                numbers[key] = point_estimate(statistic, columns)
                intervals[key] = self.bootstrap.interval(statistic, columns)
        return numbers | self._agreement() | self._scores() | {"intervals": intervals}

    def _metrics(self, name: str) -> list[Metrics]:
        """The metrics of each prompt, all its turns together."""
        prompts = []
        for row in self.rows:
            total = Metrics()
            for turn in row.sides[name]:
                total.add(turn.metrics)
            prompts.append(total)
        return prompts

    def _turns(self, name: str) -> list[Turn]:
        return [turn for row in self.rows for turn in row.sides[name]]

    def _side(self, name: str) -> dict[str, Any]:
        total = Metrics()
        prompts = self._metrics(name)
        for metrics in prompts:
            total.add(metrics)
        total.check()
        phases = [f"{phase}_ms" for phase in PHASES]
        counts = {key: item for key, item in total.as_dict().items() if key not in phases}
        turns = self._turns(name)
        peaks = [t.peak_memory_bytes for t in turns if t.peak_memory_bytes is not None]
        return {
            **counts,
            "acceptance_length_mean_over_prompts": point_estimate(mean, [_lengths(prompts)]),
            **_latency(turns),
            "peak_memory_bytes": max(peaks, default=None),
            "split": _split(turns),
            "target_logprob": _logprob(turns),
            **_starts(turns),
        }

    def _intervals_of(self, name: str) -> dict[str, Any]:
        prompts = self._metrics(name)
        stepped = [metrics for metrics in prompts if metrics.num_steps]
        tokens, seconds = _column(stepped, "num_step_tokens"), _column(stepped, "decode_s")
        steps = _column(stepped, "num_steps")
        interval = self.bootstrap.interval
        speed = {f"{name}.tokens_per_s": interval(pooled, [tokens, seconds])}
        if name == BASELINE:
            return speed
        return speed | {
            "acceptance_length": interval(pooled, [tokens, steps]),
            "acceptance_length_mean_over_prompts": interval(mean, [_lengths(stepped)]),
            "num_accepted_per_step": interval(pooled, [_column(stepped, "num_accepted"), steps]),
        }

    def _ratios(self) -> dict[str, list[list[float]]]:
        """What each ratio is computed from, over prompts on which both sides took a step."""
        pairs = zip(self._metrics(METHOD), self._metrics(BASELINE), strict=True)
        both = [(mine, plain) for mine, plain in pairs if mine.num_steps and plain.num_steps]
        method, base = [mine for mine, _ in both], [plain for _, plain in both]
        decode = [
            *(_column(method, key) for key in ("num_step_tokens", "decode_s")),
            *(_column(base, key) for key in ("num_step_tokens", "decode_s")),
        ]
        whole = [
            *(_column(method, key) for key in ("num_tokens", "total_s")),
            *(_column(base, key) for key in ("num_tokens", "total_s")),
        ]
        return {
            "speedup": decode,
            "speedup_end_to_end": whole,
            "efficiency": [*decode, _column(method, "num_steps")],
        }

    def _agreement(self) -> dict[str, Any]:
        """Agreement of the method's answers with the exact ones; {} where none was compared."""
        pairs = [pair for row in self.rows for pair in row.agreements]
        if not pairs:
            return {}
        longer = sum(pair.num_longer for pair in pairs)
        return {
            "num_compared": len(pairs),
            "num_same_text": sum(pair.same for pair in pairs),
            "agreement_prefix": sum(pair.num_common for pair in pairs) / longer,
            "agreement_tokens": sum(pair.num_equal for pair in pairs) / longer,
        }

    def _scores(self) -> dict[str, Any]:
        """Share of right answers by score and side, with the number of answers judged."""
        scores: dict[str, Any] = {}
        for score in sorted({score for row in self.rows for score in row.scores}):
            judged = [row.scores[score] for row in self.rows if score in row.scores]
            shares = {
                name: sum(right[name] for right in judged) / len(judged)
                for name in (METHOD, BASELINE)
                if all(name in right for right in judged)
            }
            scores[score] = {"num_judged": len(judged), **shares}
        return {"scores": scores} if scores else {}


def csv_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each category and one overall, for a CSV file; nested numbers get dotted keys."""
    boards = {**summary["categories"], OVERALL: summary["overall"]}
    return [
        {"category": name, **_flat(board)} for name, board in boards.items() if board is not None
    ]


def _flat(numbers: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in numbers.items():
        name = f"{above}{key}"
        if isinstance(item, dict):
            flat |= _flat(item, f"{name}.")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            for level in item:  # of acceptance_by_depth
                flat |= _flat(
                    {k: v for k, v in level.items() if k != "depth"}, f"{name}.{level['depth']}."
                )
        else:
            flat[name] = item
    return flat


def _column(prompts: Sequence[Metrics], name: str) -> list[float]:
    return [float(getattr(metrics, name)) for metrics in prompts]


def _lengths(prompts: Sequence[Metrics]) -> list[float]:
    lengths = [metrics.acceptance_length for metrics in prompts]
    return [length for length in lengths if length is not None]


def _latency(turns: Sequence[Turn]) -> dict[str, float | None]:
    """Percentiles of the time to the first token, between tokens and between steps.

    The tokens of a step share its time, and every token counts. The time between steps is what a
    reader waits for the next piece of text.
    """
    firsts = [1e3 * times.first_s for turn in turns for times in turn.rounds]
    steps, tokens = [], []
    for turn in turns:
        counts = np.array(turn.step_tokens, dtype=int)
        for times in turn.rounds:
            steps.append(np.array(times.step_ms))
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
    phases = {name: sum(split.phases[name] for split in splits) for name in splits[0].phases}
    wall = sum(split.wall_ms for split in splits)
    named = {f"{name}_ms": spent for name, spent in phases.items()}
    return {**named, "wall_ms": wall, "covered": sum(phases.values()) / wall}


def _starts(turns: Sequence[Turn]) -> dict[str, Any]:
    """Answers that began cold and warm, apart; {} where the drafter does not tell them apart.

    A warm answer began with what the drafter had learnt from earlier prompts.
    """
    starts: dict[str, Any] = {}
    for name, warm in (("cold", False), ("warm", True)):
        total, mine = Metrics(), [turn for turn in turns if turn.warm is warm]
        for turn in mine:
            total.add(turn.metrics)
        if mine:
            rates = {"acceptance_length": total.acceptance_length}
            starts[name] = {"num_answers": len(mine), **rates, "tokens_per_s": total.tokens_per_s}
    return {"starts": starts} if starts else {}


def _logprob(turns: Sequence[Turn]) -> float | None:
    """Mean of `target_logprob` over all tokens, in nats."""
    means = [(turn.target_logprob, len(turn.tokens)) for turn in turns]
    known = [(mean, count) for mean, count in means if mean is not None]
    total = sum(count for _, count in known)
    return sum(mean * count for mean, count in known) / total if total else None
