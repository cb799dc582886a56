"""Configurations: runs that differ in their seed alone, named by what sets them apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specframe.accept.base import RULES
from specframe.measure.bootstrap import Bootstrap
from specframe.report.conditions import conditions_of, facts_of, prompts_of
from specframe.report.numbers import Numbers, by_category, measure
from specframe.report.run_answers import ReportedAnswer, add_costs, add_depths
from specframe.report.runs import FinishedRun

AXES = ("drafter", "tree", "accept", "target", "cache", "runtime")
_NAMED = AXES[:2]  # these words are in every name, even if all configurations share them


@dataclass(frozen=True, kw_only=True)
class Group:
    """A configuration: runs that differ in their seed alone."""

    number: int  # from 1, in the order in which the configurations were found
    label: str  # its words, and the numbers that set it apart from the others
    around: str  # what else sets it apart: device, length, prompts, commit
    runs: Sequence[FinishedRun]  # one for each seed
    facts: dict[str, Any]  # everything that its numbers may depend on, by dotted key
    conditions: dict[str, Any]  # what another must share to be compared with it, beside a seed
    answers: Sequence[ReportedAnswer]
    numbers: Numbers  # of all seeds together, with intervals over prompts
    categories: dict[str, Numbers]
    # Whether plain_ms comes from a run of drafter=none that was not interleaved with this one.
    plain_is_separate: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it drafts nothing."""
        return self.facts.get("drafter.name") == "none"

    @property
    def lossless(self) -> bool | None:
        """Whether its rule is lossless; None for a rule that is not installed here."""
        name = self.facts.get("accept.name")
        if self.is_plain:
            return True
        return RULES.get(name).lossless if name in RULES.names() else None

    @property
    def speed(self) -> float | None:
        """Its speedup where that was measured, or else tokens a second."""
        return self.numbers.speedup or self.numbers.tokens_per_s

    def shared_seeds(self, other: Group) -> set[Any]:
        """The seeds over which the two can be compared; empty where their conditions differ."""
        if self.conditions != other.conditions:
            return set()
        return {run.seed for run in self.runs} & {run.seed for run in other.runs}

    def answers_of(self, seeds: Container[Any]) -> Sequence[ReportedAnswer]:
        """The answers of these seeds, those to one prompt added up."""
        runs = [run for run in self.runs if run.seed in seeds]
        return self.answers if len(runs) == len(self.runs) else _merged([r.answers for r in runs])

    def quality(self, key: str, side: str | None = None) -> float | None:
        """Mean over seeds of a number in a benchmark's summary, or of one side of it."""
        tables = [run.overall if side is None else run.overall.get(side, {}) for run in self.runs]
        values = [table[key] for table in tables if table.get(key) is not None]
        return sum(values) / len(values) if values else None

    def spread(self, name: str) -> tuple[float, float] | None:
        """Least and largest value over seeds of a field of `Numbers`; None for a single run."""
        values = [getattr(run.numbers, name) for run in self.runs]
        known = [value for value in values if value is not None]
        return (min(known), max(known)) if len(known) > 1 else None


def group_runs(runs: Sequence[FinishedRun], *, bootstrap: Bootstrap) -> list[Group]:
    """Sort runs into configurations. A second run of the same seed forms another group."""
    buckets: dict[tuple[str, int], list[FinishedRun]] = {}
    for run in runs:
        key = json.dumps(facts_of(run), sort_keys=True, default=str)
        copy = 0
        while run.seed in [other.seed for other in buckets.get((key, copy), [])]:
            copy += 1
        buckets.setdefault((key, copy), []).append(run)
    every = [facts_of(bucket[0]) for bucket in buckets.values()]
    labels = _labels(every, list(buckets.values()))
    groups = []
    for number, (facts, bucket) in enumerate(zip(every, buckets.values(), strict=True), start=1):
        answers = _merged([run.answers for run in bucket])
        groups.append(
            Group(
                number=number,
                label=labels[number - 1],
                around=_differing(facts, every, method=False),
                runs=bucket,
                facts=facts,
                conditions=conditions_of(facts, prompts=prompts_of(bucket[0], runs)),
                answers=answers,
                numbers=_numbers(bucket, answers, bootstrap),
                categories=by_category(answers),
            )
        )
    return [_with_plain(group, groups) for group in groups]


def _labels(every: Sequence[dict[str, Any]], runs: Sequence[Sequence[FinishedRun]]) -> list[str]:
    """A name for each: its words and numbers, and more where two would have the same name."""
    labels = [_words(facts, every) for facts in every]
    for more in (
        [_differing(facts, every, method=False) for facts in every],
        [f"({bucket[0].name})" for bucket in runs],
    ):
        longer = set(zip(labels, more, strict=True))
        counts = Counter(label for label, _ in longer)
        labels = [
            f"{label} {word}".rstrip() if counts[label] > 1 else label
            for label, word in zip(labels, more, strict=True)
        ]
    return labels


def _words(facts: dict[str, Any], every: Sequence[dict[str, Any]]) -> str:
    words = [str(facts[f"{axis}.name"]) for axis in AXES if _is_named(axis, facts, every)]
    return " ".join([*words, _differing(facts, every, method=True)]).strip() or "run"


def _differing(facts: dict[str, Any], every: Sequence[dict[str, Any]], *, method: bool) -> str:
    """The keys that differ between configurations: those of the method, or those around it."""
    return " ".join(
        f"{key}={_short(facts.get(key))}"
        for key in facts
        if ("." in key) == method and _differs(key, facts, every)
    )


def differences(first: Group, second: Group) -> list[tuple[str, Any, Any]]:
    """(key, first value, second value) of all facts in which two configurations differ."""
    keys = dict.fromkeys([*first.facts, *second.facts])
    values = [(key, first.facts.get(key), second.facts.get(key)) for key in keys]
    return [entry for entry in values if entry[1] != entry[2]]


def _is_named(axis: str, facts: dict[str, Any], every: Sequence[dict[str, Any]]) -> bool:
    key = f"{axis}.name"
    if key not in facts:
        return False
    words = {other[key] for other in every if key in other}  # plain decoding has no tree, no rule
    return axis in _NAMED or len(words) > 1


def _differs(key: str, facts: dict[str, Any], every: Sequence[dict[str, Any]]) -> bool:
    """Whether a key differs among the configurations that have the same word on its axis."""
    axis, dot, rest = key.partition(".")
    if rest == "name":
        return False
    if dot and axis in AXES:
        name = facts.get(f"{axis}.name")
        every = [other for other in every if other.get(f"{axis}.name") == name]
    return len({str(other.get(key)) for other in every}) > 1


def _numbers(
    runs: Sequence[FinishedRun], answers: Sequence[ReportedAnswer], bootstrap: Bootstrap
) -> Numbers:
    if len(runs) == 1:
        return runs[0].numbers
    numbers = measure(answers, split=None, bootstrap=bootstrap)
    shares = [run.numbers.shares for run in runs if run.numbers.shares]
    if not shares:
        return numbers
    mean = {phase: sum(share[phase] for share in shares) / len(shares) for phase in shares[0]}
    return replace(numbers, shares=mean, synchronised=all(run.numbers.synchronised for run in runs))


def _merged(parts: Sequence[Sequence[ReportedAnswer]]) -> list[ReportedAnswer]:
    """The answers of all seeds, those to one prompt added up."""
    by_key: dict[str, list[ReportedAnswer]] = {}
    for answer in (answer for part in parts for answer in part):
        by_key.setdefault(answer.key, []).append(answer)
    return [same[0] if len(same) == 1 else _added(same) for same in by_key.values()]


def _added(same: Sequence[ReportedAnswer]) -> ReportedAnswer:
    """Answers to one prompt as a single one."""
    bases = [answer.base for answer in same if answer.base is not None]
    phases = same[0].phases_ms
    return replace(
        same[0],
        method=add_costs([answer.method for answer in same]),
        base=add_costs(bases) if len(bases) == len(same) else None,
        depths=add_depths([answer.depths for answer in same]),
        phases_ms={name: sum(answer.phases_ms[name] for answer in same) for name in phases},
    )


def _with_plain(group: Group, every: Sequence[Group]) -> Group:
    """The group; without a baseline of its own it gets plain_ms of a run of drafter=none."""
    if group.is_plain:
        return replace(group, numbers=replace(group.numbers, plain_ms=group.numbers.pass_ms))
    if group.numbers.plain_ms is not None:
        return group
    for other in every:
        if other.is_plain and other.shared_seeds(group):
            numbers = replace(group.numbers, plain_ms=other.numbers.pass_ms)
            return replace(group, numbers=numbers, plain_is_separate=True)
    return group


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, bool | None) else str(value)
    return text if len(text) <= 40 else f"…{text[-39:]}"
