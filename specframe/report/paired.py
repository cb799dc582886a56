"""Two configurations compared over the prompts that both answered."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from specframe.measure.bootstrap import Bootstrap
from specframe.report.comparable import comparable_sets
from specframe.report.groups import Group
from specframe.report.numbers import measure
from specframe.report.reasons import versus
from specframe.report.run_answers import ReportedAnswer

MAX_ALL_PAIRS = 10  # with more configurations, each is tested against the fastest alone
MIN_PROMPTS = 6  # with fewer, no two-sided signed-rank test can reach 5 %


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Two configurations, compared prompt by prompt."""

    faster: Group
    slower: Group
    num_prompts: int  # that both answered
    num_wins: int  # prompts on which `faster` is the faster one
    ratio: float  # geometric mean over prompts of the speed of `faster` over that of `slower`
    ends: tuple[float, float] | None  # of the bootstrap interval of the ratio
    # Of Wilcoxon's signed-rank test of the log ratios; None with too few prompts, or if all are 0.
    p_value: float | None
    p_adjusted: float | None  # by Holm, for all comparisons of the report
    length_gap: float  # mean over prompts of the difference of tokens a pass
    # Whether each speed is over plain decoding in the same run, so that a slower machine cancels.
    interleaved: bool
    reason: str  # why the one is faster, a sentence


def compare(groups: Sequence[Group], *, bootstrap: Bootstrap) -> list[PairedComparison]:
    """Compare all pairs that can be, or each with the fastest of its set where there are many."""
    pairs: list[tuple[Group, Group]] = []
    for ordered in comparable_sets(groups):
        every = list(combinations(ordered, 2))
        against_fastest = [(ordered[0], other) for other in ordered[1:]]
        pairs += every if len(ordered) <= MAX_ALL_PAIRS else against_fastest
    results = [compare_pair(*pair, bootstrap=bootstrap) for pair in pairs]
    return _adjusted([result for result in results if result is not None])


def compare_pair(first: Group, second: Group, *, bootstrap: Bootstrap) -> PairedComparison | None:
    """Compare two; None if they share no prompt or were measured under different conditions."""
    seeds = first.shared_seeds(second)
    ours, its = first.answers_of(seeds), second.answers_of(seeds)
    theirs = {answer.key: answer for answer in its}
    pairs = [(mine, theirs[mine.key]) for mine in ours if mine.key in theirs]
    interleaved = all(x.base is not None and y.base is not None for x, y in pairs)
    logs, gaps = [], []
    for mine, other in pairs:
        speeds = _speed(mine, interleaved), _speed(other, interleaved)
        lengths = mine.acceptance_length, other.acceptance_length
        if None in (*speeds, *lengths):
            continue
        logs.append(float(np.log(speeds[0]) - np.log(speeds[1])))  # type: ignore[arg-type]
        gaps.append(lengths[0] - lengths[1])  # type: ignore[operator]
    if not logs:
        return None
    if sum(logs) < 0:
        return compare_pair(second, first, bootstrap=bootstrap)
    ends = bootstrap.interval(_geometric, [logs])
    return PairedComparison(
        faster=first,
        slower=second,
        num_prompts=len(logs),
        num_wins=sum(value > 0 for value in logs),
        ratio=float(_geometric(logs)),
        ends=ends,
        p_value=signed_rank(logs),
        p_adjusted=None,
        length_gap=sum(gaps) / len(gaps),
        interleaved=interleaved,
        reason=versus(_over(first, ours, theirs), _over(second, its, {x.key for x in ours})),
    )


def _over(group: Group, answers: Sequence[ReportedAnswer], keys: Container[str]) -> Group:
    """The group with its numbers over these answers, those to prompts of these keys."""
    shared = [answer for answer in answers if answer.key in keys]
    if answers is group.answers and len(shared) == len(answers):
        return group
    numbers = measure(shared, split=None, bootstrap=None)
    plain = numbers.plain_ms if numbers.plain_ms is not None else group.numbers.plain_ms
    return replace(group, numbers=replace(numbers, plain_ms=plain, shares=group.numbers.shares))


def signed_rank(differences: Sequence[float]) -> float | None:
    """Two-sided p-value of Wilcoxon's signed-rank test that they lie around 0 (Wilcoxon 1945)."""
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


def _adjusted(pairs: Sequence[PairedComparison]) -> list[PairedComparison]:
    """The comparisons with p-values adjusted by Holm's step-down method (Holm 1979)."""
    known = sorted(
        (pair.p_value, index) for index, pair in enumerate(pairs) if pair.p_value is not None
    )
    adjusted: dict[int, float] = {}
    worst = 0.0
    for rank, (p_value, index) in enumerate(known):
        worst = max(worst, min(1.0, p_value * (len(known) - rank)))
        adjusted[index] = worst
    return [replace(pair, p_adjusted=adjusted.get(index)) for index, pair in enumerate(pairs)]
