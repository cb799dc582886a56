"""Bootstrap intervals: how much of a number is the choice of prompts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Columns = Sequence[Sequence[float]]
Statistic = Callable[..., Any]  # arrays [..., P], one a column -> [...]


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Resamples prompts with replacement, all columns alike, so that a ratio of two methods is
    paired. resamples: how often; confidence: the level, as 0.95. Same numbers, same interval.
    """

    resamples: int
    confidence: float

    def interval(self, statistic: Statistic, columns: Columns) -> tuple[float, float] | None:
        """Ends of the interval of statistic(*columns); None for a single prompt.

        Bias-corrected and accelerated (Efron 1987); plain percentiles where that is undefined, as
        when all prompts are alike.
        """
        from scipy.stats import DegenerateDataWarning, bootstrap

        held = [np.asarray(column, dtype=float) for column in columns]
        if held[0].size < 2 or not np.isfinite(point_estimate(statistic, columns) or np.nan):
            return None
        if all(np.ptp(column) == 0 for column in held):
            point = float(statistic(*held))
            return point, point
        for method in ("BCa", "percentile"):
            with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", DegenerateDataWarning)
                found = bootstrap(
                    held,
                    lambda *arrays, axis=-1: statistic(*arrays),
                    paired=True,
                    vectorized=True,
                    n_resamples=self.resamples,
                    confidence_level=self.confidence,
                    method=method,
                    rng=np.random.default_rng(0),
                ).confidence_interval
            if np.isfinite([found.low, found.high]).all():
                return float(found.low), float(found.high)
        return None


def point_estimate(statistic: Statistic, columns: Columns) -> float | None:
    """The statistic of the prompts themselves; None where it divides by nothing."""
    held = [np.asarray(column, dtype=float) for column in columns]
    if not held or not held[0].size:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        found = float(statistic(*held))
    return found if np.isfinite(found) else None


def mean(numbers: Any) -> Any:
    """The mean over prompts."""
    return np.mean(numbers, axis=-1)


def pooled(above: Any, below: Any) -> Any:
    """Sum over prompts of `above` / sum of `below`: a long answer weighs more."""
    return np.sum(above, axis=-1) / np.sum(below, axis=-1)


def speedup(tokens: Any, seconds: Any, base_tokens: Any, base_seconds: Any) -> Any:
    """Tokens a second / tokens a second of the baseline, each pooled."""
    return pooled(tokens, seconds) / pooled(base_tokens, base_seconds)


def efficiency(tokens: Any, seconds: Any, base_tokens: Any, base_seconds: Any, steps: Any) -> Any:
    """Speedup / acceptance_length: what is left of the ideal. tokens: of verify steps."""
    return speedup(tokens, seconds, base_tokens, base_seconds) / pooled(tokens, steps)
