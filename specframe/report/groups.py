"""Configurations: runs that differ in their seed alone, each named by what sets it apart."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from specframe.accept.base import RULES
from specframe.measure.bootstrap import Bootstrap
from specframe.report.numbers import Numbers, by_category, measure
from specframe.report.run_answers import ReportedAnswer, add_costs, add_depths
from specframe.report.runs import FinishedRun, flattened

AXES = ("drafter", "tree", "accept", "target", "cache", "runtime")
_NAMED = AXES[:2]  # a configuration is called by these even if all have the same
# What says nothing of the method: prompts are told apart by the answers themselves.
_APART = ("seed", "task", "prompt", "prompts", "data", "train", "expects", "trace", "tracker")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one configuration, a seed each.

    number: from 1, in the order in which they were found; label: its words and the numbers that
    set it apart, `around` what else does (device, length, prompts, commit); facts: everything that
    could, by dotted key; numbers: all seeds together, intervals over prompts. plain_apart: plain_ms
    is of a run of drafter=none that was not interleaved with this one.
    """

    number: int
    label: str
    around: str
    runs: Sequence[FinishedRun]
    facts: dict[str, Any]
    answers: Sequence[ReportedAnswer]
    numbers: Numbers
    categories: dict[str, Numbers]
    plain_apart: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it drafts nothing."""
        return self.facts.get("drafter.name") == "none"

    @property
    def lossless(self) -> bool | None:
        """Of its rule; None if the rule is not known here."""
        name = self.facts.get("accept.name")
        if self.is_plain:
            return True
        return RULES.get(name).lossless if name in RULES.names() else None

    @property
    def speed(self) -> float | None:
        """speedup where it was measured, else tokens a second."""
        return self.numbers.speedup or self.numbers.tokens_per_s

    def quality(self, key: str, side: str | None = None) -> float | None:
        """Mean over seeds of a number of the benchmark, of one side if named."""
        tables = [run.overall if side is None else run.overall.get(side, {}) for run in self.runs]
        held = [one[key] for one in tables if one.get(key) is not None]
        return sum(held) / len(held) if held else None

    def spread(self, name: str) -> tuple[float, float] | None:
        """Least and most over seeds of one of `Numbers`; None for a single run."""
        held = [getattr(run.numbers, name) for run in self.runs]
        known = [one for one in held if one is not None]
        return (min(known), max(known)) if len(known) > 1 else None


def group(runs: Sequence[FinishedRun], *, bootstrap: Bootstrap) -> list[Group]:
    """Sort runs into configurations. The same configuration and seed twice stays apart."""
    buckets: dict[tuple[str, int], list[FinishedRun]] = {}
    for run in runs:
        key = json.dumps(facts_of(run), sort_keys=True, default=str)
        copy = 0
        while run.seed in [other.seed for other in buckets.get((key, copy), [])]:
            copy += 1
        buckets.setdefault((key, copy), []).append(run)
    every = [facts_of(held[0]) for held in buckets.values()]
    labels = _labels(every, list(buckets.values()))
    made = []
    for number, (facts, held) in enumerate(zip(every, buckets.values(), strict=True), start=1):
        answers = _merged([run.answers for run in held])
        made.append(
            Group(
                number=number,
                label=labels[number - 1],
                around=_told(facts, every, method=False),
                runs=held,
                facts=facts,
                answers=answers,
                numbers=_numbers(held, answers, bootstrap),
                categories=by_category(answers),
            )
        )
    return [_with_plain(one, made) for one in made]


def facts_of(run: FinishedRun) -> dict[str, Any]:
    """Everything of a run that its numbers may depend on, but for the seed."""
    kept = {key: value for key, value in run.config.items() if key not in _APART}
    if (kept.get("drafter") or {}).get("name") == "none":  # without a draft they do nothing
        kept = {key: value for key, value in kept.items() if key not in ("tree", "accept")}
    keys = sorted(one.key for one in run.answers)
    machine = run.manifest.get("hardware") or {}
    device = machine.get("cuda") or {}
    return {
        **flattened(kept),
        "task": run.task,
        "prompts": hashlib.sha256(" ".join(keys).encode()).hexdigest()[:8],
        "torch": (run.manifest.get("packages") or {}).get("torch"),
        "commit": str((run.manifest.get("git") or {}).get("commit"))[:8],
        "machine": device.get("device") or machine.get("cpu"),
    }


def _labels(every: Sequence[dict[str, Any]], runs: Sequence[Sequence[FinishedRun]]) -> list[str]:
    """A name for each: its words and numbers, more where two would be called alike."""
    made = [_words(facts, every) for facts in every]
    for more in (
        [_told(facts, every, method=False) for facts in every],
        [f"({held[0].name})" for held in runs],
    ):
        told = set(zip(made, more, strict=True))
        helps = {label for label, count in Counter(label for label, _ in told).items() if count > 1}
        made = [
            f"{label} {word}".rstrip() if label in helps else label
            for label, word in zip(made, more, strict=True)
        ]
    return made


def _words(facts: dict[str, Any], every: Sequence[dict[str, Any]]) -> str:
    words = [str(facts[f"{axis}.name"]) for axis in AXES if _is_told(axis, facts, every)]
    return " ".join([*words, _told(facts, every, method=True)]).strip() or "run"


def _told(facts: dict[str, Any], every: Sequence[dict[str, Any]], *, method: bool) -> str:
    """The keys that differ: those of the method, or those around it."""
    return " ".join(
        f"{key}={_short(facts.get(key))}"
        for key in facts
        if ("." in key) == method and _differs(key, facts, every)
    )


def differences(one: Group, other: Group) -> list[tuple[str, Any, Any]]:
    """(key, its value, the other's) of all facts in which two configurations differ."""
    keys = dict.fromkeys([*one.facts, *other.facts])
    return [
        (key, one.facts.get(key), other.facts.get(key))
        for key in keys
        if one.facts.get(key) != other.facts.get(key)
    ]


def _is_told(axis: str, facts: dict[str, Any], every: Sequence[dict[str, Any]]) -> bool:
    key = f"{axis}.name"
    if key not in facts:
        return False
    return axis in _NAMED or len({str(other.get(key)) for other in every}) > 1


def _differs(key: str, facts: dict[str, Any], every: Sequence[dict[str, Any]]) -> bool:
    """Whether a key differs among the configurations that have the same word on its axis."""
    axis, dot, rest = key.partition(".")
    if rest == "name":
        return False
    if dot and axis in AXES:
        every = [one for one in every if one.get(f"{axis}.name") == facts.get(f"{axis}.name")]
    return len({str(one.get(key)) for one in every}) > 1


def _numbers(
    runs: Sequence[FinishedRun], answers: Sequence[ReportedAnswer], bootstrap: Bootstrap
) -> Numbers:
    if len(runs) == 1:
        return runs[0].numbers
    found = measure(answers, split=None, bootstrap=bootstrap)
    shares = [run.numbers.shares for run in runs if run.numbers.shares]
    if not shares:
        return found
    mean = {phase: sum(one[phase] for one in shares) / len(shares) for phase in shares[0]}
    return replace(found, shares=mean, synchronised=all(run.numbers.synchronised for run in runs))


def _merged(parts: Sequence[Sequence[ReportedAnswer]]) -> list[ReportedAnswer]:
    """The answers of all seeds, those to one prompt added up."""
    held: dict[str, list[ReportedAnswer]] = {}
    for one in (answer for part in parts for answer in part):
        held.setdefault(one.key, []).append(one)
    return [many[0] if len(many) == 1 else _added(many) for many in held.values()]


def _added(many: Sequence[ReportedAnswer]) -> ReportedAnswer:
    bases = [one.base for one in many if one.base is not None]
    phases = many[0].phases_ms
    return replace(
        many[0],
        method=add_costs([one.method for one in many]),
        base=add_costs(bases) if len(bases) == len(many) else None,
        depths=add_depths([one.depths for one in many]),
        phases_ms={name: sum(one.phases_ms[name] for one in many) for name in phases},
    )


def _with_plain(one: Group, every: Sequence[Group]) -> Group:
    """With plain decoding's time of a token from a run of drafter=none, if it has none beside."""
    if one.is_plain:
        return replace(one, numbers=replace(one.numbers, plain_ms=one.numbers.pass_ms))
    if one.numbers.plain_ms is not None:
        return one
    for other in every:
        if other.is_plain and _surroundings(other) == _surroundings(one):
            numbers = replace(one.numbers, plain_ms=other.numbers.pass_ms)
            return replace(one, numbers=numbers, plain_apart=True)
    return one


def _surroundings(one: Group) -> dict[str, Any]:
    return {
        key: value
        for key, value in one.facts.items()
        if key.partition(".")[0] not in ("drafter", "tree", "accept")
    }


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, bool | None) else str(value)
    return text if len(text) <= 40 else f"…{text[-39:]}"
