"""Bootstrap intervals: how much of a number is due to the choice of prompts.

Prompts are drawn anew with replacement, as many as there are, and the number is computed again,
some thousand times; its spread says how far another set of prompts would move it. All columns are
resampled alike, so a ratio of two methods is paired: prompts that are easy for both do not widen
its interval. The interval is bias-corrected and accelerated (BCa; Efron, Better bootstrap
confidence intervals, 1987).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Columns = Sequence[Sequence[float]]  # one number a prompt in each column
Statistic = Callable[..., Any]  # arrays [..., P], one a column -> [...]


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Resamples prompts. The noise is fixed: the same numbers give the same interval."""

    resamples: int  # how often prompts are drawn anew
    confidence: float  # level of the interval, such as 0.95

    def interval(self, statistic: Statistic, columns: Columns) -> tuple[float, float] | None:
        """(low, high) of statistic(*columns); None for a single prompt.

        Plain percentiles are given where BCa is undefined; where all prompts are alike, both ends
        are the number itself.
        """
        from scipy.stats import DegenerateDataWarning, bootstrap

        arrays = [np.asarray(column, dtype=float) for column in columns]
        if arrays[0].size < 2 or not np.isfinite(point_estimate(statistic, columns) or np.nan):
            return None
        if all(np.ptp(column) == 0 for column in arrays):
            point = float(statistic(*arrays))
            return point, point
        for method in ("BCa", "percentile"):
            with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", DegenerateDataWarning)
                interval = bootstrap(
                    arrays,
                    lambda *resampled, axis=-1: statistic(*resampled),
                    paired=True,
                    vectorized=True,
                    n_resamples=self.resamples,
                    confidence_level=self.confidence,
                    method=method,
                    rng=np.random.default_rng(0),
                ).confidence_interval
            if np.isfinite([interval.low, interval.high]).all():
                return float(interval.low), float(interval.high)
        return None


def point_estimate(statistic: Statistic, columns: Columns) -> float | None:
    """The statistic of the prompts as they are; None where it is not finite."""
    arrays = [np.asarray(column, dtype=float) for column in columns]
    if not arrays or not arrays[0].size:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = float(statistic(*arrays))
    return estimate if np.isfinite(estimate) else None


def mean(numbers: Any) -> Any:
    """The mean over prompts, in which each prompt weighs the same."""
    return np.mean(numbers, axis=-1)


def pooled(above: Any, below: Any) -> Any:
    """Sum over prompts of `above` / sum of `below`, in which a long answer weighs more."""
    return np.sum(above, axis=-1) / np.sum(below, axis=-1)


def speedup(tokens: Any, seconds: Any, base_tokens: Any, base_seconds: Any) -> Any:
    """Tokens a second over tokens a second of the baseline, each pooled over prompts."""
    return pooled(tokens, seconds) / pooled(base_tokens, base_seconds)


def efficiency(tokens: Any, seconds: Any, base_tokens: Any, base_seconds: Any, steps: Any) -> Any:
    """Speedup / acceptance length: how much of the ideal is left.

    tokens: of verify steps, prefill's first token left out.
    """
    return speedup(tokens, seconds, base_tokens, base_seconds) / pooled(tokens, steps)
