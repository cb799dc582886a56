"""Sets of configurations that can be compared with each other, each set from the fastest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specframe.report.groups import Group


def comparable_sets(groups: Sequence[Group]) -> list[list[Group]]:
    """The configurations sorted into sets, each fastest first.

    Between two sets nothing can be compared. Within one, conditions are equal, and each
    configuration shares a seed with another.
    """
    sets: list[list[Group]] = []
    for group in groups:
        near = [each for each in sets if any(group.shared_seeds(other) for other in each)]
        sets = [each for each in sets if all(each is not other for other in near)]
        sets.append([*(other for each in near for other in each), group])
    return [
        _by_speed(each)
        for each in sorted(sets, key=lambda each: min(group.number for group in each))
    ]


def conditions_of_sets(sets: Sequence[Sequence[Group]]) -> list[dict[str, Any]]:
    """The conditions of each set, with its seeds."""
    seeds = [sorted({run.seed for g in each for run in g.runs}, key=str) for each in sets]
    return [{**each[0].conditions, "seed": own} for each, own in zip(sets, seeds, strict=True)]


def ranked(groups: Sequence[Group]) -> list[Group]:
    """The configurations of `comparable_sets` one set behind the other, numbered in this order."""
    ordered = [group for each in comparable_sets(groups) for group in each]
    return [replace(group, number=number) for number, group in enumerate(ordered, start=1)]


def _by_speed(groups: Sequence[Group]) -> list[Group]:
    """Fastest first. Where speeds over plain decoding are known, seconds alone come last."""
    over = any(group.numbers.speedup for group in groups)

    def speed(group: Group) -> tuple[bool, float]:
        known = group.numbers.speedup or (1.0 if group.is_plain else None) if over else None
        return known is not None, known or group.numbers.tokens_per_s or 0.0

    return sorted(groups, key=speed, reverse=True)
