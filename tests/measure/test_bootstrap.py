"""Bootstrap intervals: paired, repeatable, of the right width, honest where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from specframe.measure.bootstrap import Bootstrap, efficiency, mean, point_estimate, pooled, speedup

BOOTSTRAP = Bootstrap(resamples=1000, confidence=0.95)


def test_statistics_by_hand() -> None:
    assert point_estimate(pooled, [[10, 90], [5, 10]]) == pytest.approx(100 / 15)
    assert point_estimate(mean, [[2, 9]]) == 5.5
    columns = [[10, 90], [1.0, 4.0], [10, 90], [2.0, 18.0]]
    assert point_estimate(speedup, columns) == pytest.approx(4)
    assert point_estimate(efficiency, [*columns, [5, 45]]) == pytest.approx(2)
    assert point_estimate(pooled, [[1.0], [0.0]]) is None
    assert point_estimate(mean, [[]]) is None


def test_an_interval_is_about_as_wide_as_it_should_be() -> None:
    rng = np.random.default_rng(1)
    inside, widths = 0, []
    for _ in range(60):
        sample = rng.normal(3.0, 1.0, 40)
        low, high = BOOTSTRAP.interval(mean, [sample.tolist()]) or (0, 0)
        inside += low <= 3.0 <= high
        widths.append(high - low)
    assert inside >= 50, "of 60 at 95 %"
    assert np.mean(widths) == pytest.approx(2 * 1.96 / np.sqrt(40), rel=0.15)


def test_ratios_are_paired() -> None:
    """Tokens of some prompts cost ten times others'; the speedup of each is nearly the same."""
    rng = np.random.default_rng(2)
    tokens = rng.integers(20, 400, 30).astype(float)
    base = tokens * rng.uniform(0.01, 0.1, 30)
    mine = base / 2 * rng.normal(1, 0.01, 30)
    low, high = BOOTSTRAP.interval(speedup, [tokens, mine, tokens, base]) or (0, 0)
    assert 1.97 < low < high < 2.03
    shuffled = rng.permutation(30)
    apart = BOOTSTRAP.interval(speedup, [tokens, mine, tokens[shuffled], base[shuffled]])
    assert apart is not None and apart[1] - apart[0] > 5 * (high - low)


def test_the_same_numbers_give_the_same_interval() -> None:
    column = [1.0, 2.0, 4.0, 8.0]
    assert BOOTSTRAP.interval(mean, [column]) == BOOTSTRAP.interval(mean, [column])
    wide, narrow = (
        Bootstrap(resamples=1000, confidence=level).interval(mean, [column]) or (0, 0)
        for level in (0.99, 0.5)
    )
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_where_there_is_none() -> None:
    assert BOOTSTRAP.interval(mean, [[2.0]]) is None
    assert BOOTSTRAP.interval(pooled, [[1.0, 1.0], [0.0, 0.0]]) is None
    assert BOOTSTRAP.interval(mean, [[2.0, 2.0, 2.0]]) == (2.0, 2.0)
