"""Two configurations compared over the prompts that both answered."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from specframe.measure.bootstrap import Bootstrap
from specframe.report.groups import Group
from specframe.report.numbers import measure
from specframe.report.reasons import versus
from specframe.report.run_answers import ReportedAnswer

MAX_ALL_PAIRS = 10  # configurations up to which every pair is tested; above, each with the fastest
MIN_PROMPTS = 6  # of fewer no two-sided signed-rank test can reach 5 %


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The faster of two against the other, prompt by prompt.

    ratio: geometric mean over prompts of its speed over the other's; ends: of the bootstrap
    interval. p_value: of Wilcoxon's signed-rank test of the log ratios, p_adjusted: by Holm for
    all comparisons of the report; None where there are too few prompts or no difference at all.
    length_gap: mean over prompts of the difference of tokens a pass. interleaved: each speed is
    over plain decoding beside it, so that a slower machine cancels.
    """

    one: Group
    other: Group
    num_prompts: int
    num_wins: int
    ratio: float
    ends: tuple[float, float] | None
    p_value: float | None
    p_adjusted: float | None
    length_gap: float
    interleaved: bool
    reason: str


def compare(groups: Sequence[Group], *, bootstrap: Bootstrap) -> list[Comparison]:
    """All pairs, or each with the fastest where there are many."""
    ranked = sorted(groups, key=lambda one: one.speed or 0.0, reverse=True)
    pairs = list(combinations(ranked, 2))
    if len(ranked) > MAX_ALL_PAIRS:
        pairs = [(ranked[0], other) for other in ranked[1:]]
    made = [compared(one, other, bootstrap=bootstrap) for one, other in pairs]
    return _adjusted([one for one in made if one is not None])


def compared(one: Group, other: Group, *, bootstrap: Bootstrap) -> Comparison | None:
    """One pair; None if they share no prompt, or were measured in different units."""
    theirs = {answer.key: answer for answer in other.answers}
    pairs = [(mine, theirs[mine.key]) for mine in one.answers if mine.key in theirs]
    interleaved = all(x.base is not None and y.base is not None for x, y in pairs)
    logs, gaps = [], []
    for mine, its in pairs:
        speeds = _speed(mine, interleaved), _speed(its, interleaved)
        lengths = mine.acceptance_length, its.acceptance_length
        if None in (*speeds, *lengths):
            continue
        logs.append(float(np.log(speeds[0]) - np.log(speeds[1])))  # type: ignore[arg-type]
        gaps.append(lengths[0] - lengths[1])  # type: ignore[operator]
    if not logs:
        return None
    if sum(logs) < 0:
        return compared(other, one, bootstrap=bootstrap)
    ends = bootstrap.interval(_geometric, [logs])
    return Comparison(
        one=one,
        other=other,
        num_prompts=len(logs),
        num_wins=sum(value > 0 for value in logs),
        ratio=float(_geometric(logs)),
        ends=ends,
        p_value=signed_rank(logs),
        p_adjusted=None,
        length_gap=sum(gaps) / len(gaps),
        interleaved=interleaved,
        reason=versus(_over(one, theirs), _over(other, {x.key: x for x in one.answers})),
    )


def _over(one: Group, keys: Container[str]) -> Group:
    """Its numbers over the prompts that both answered."""
    shared = [answer for answer in one.answers if answer.key in keys]
    if len(shared) == len(one.answers):
        return one
    found = measure(shared, split=None, bootstrap=None)
    plain = found.plain_ms if found.plain_ms is not None else one.numbers.plain_ms
    return replace(one, numbers=replace(found, plain_ms=plain, shares=one.numbers.shares))


def signed_rank(differences: Sequence[float]) -> float | None:
    """Two-sided p of Wilcoxon's signed-rank test that they lie around 0 (Wilcoxon 1945)."""
    from scipy.stats import wilcoxon

    if len(differences) < MIN_PROMPTS or not any(differences):
        return None
    return float(wilcoxon(differences).pvalue)


def _speed(answer: ReportedAnswer, interleaved: bool) -> float | None:
    if interleaved:
        return answer.speed
    return replace(answer, base=None).speed


def _geometric(logs: object) -> np.ndarray:
    return np.exp(np.mean(np.asarray(logs), axis=-1))


def _adjusted(made: Sequence[Comparison]) -> list[Comparison]:
    """With Holm's step-down adjustment (Holm 1979)."""
    known = sorted(
        (one.p_value, index) for index, one in enumerate(made) if one.p_value is not None
    )
    found: dict[int, float] = {}
    worst = 0.0
    for rank, (p_value, index) in enumerate(known):
        worst = max(worst, min(1.0, p_value * (len(known) - rank)))
        found[index] = worst
    return [replace(one, p_adjusted=found.get(index)) for index, one in enumerate(made)]
