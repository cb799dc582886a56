"""What the report says before anything else: which is fastest, and what the numbers cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specframe.report.cells import counted
from specframe.report.comparable import comparable_sets, conditions_of_sets
from specframe.report.conditions import apart_sentence, apart_words
from specframe.report.groups import Group
from specframe.report.paired import MIN_PROMPTS, PairedComparison
from specframe.report.reasons import why
from specframe.report.runs import RunList
from specframe.report.tables import p_text
from specframe.report.traces import TraceReader


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a report is made of."""

    title: str
    listed: RunList  # the runs, and the points of sweeps without numbers
    groups: Sequence[Group]
    comparisons: Sequence[PairedComparison]
    confidence: float  # level of the intervals
    traces: dict[str, TraceReader]  # name of a run -> its trace


def summary(content: Content) -> list[str]:
    """The sentences at the top: which configuration is fastest, and by how much over the next.

    Each set of configurations that can be compared has sentences of its own.
    """
    sets = comparable_sets(content.groups)
    sentences = []
    for number, groups in enumerate(sets):
        said = _fastest(groups, content)
        sentences += (
            said if len(sets) == 1 else [f"{set_title(number, sets)}. {said[0]}", *said[1:]]
        )
    return sentences


def set_title(number: int, sets: Sequence[Sequence[Group]]) -> str:
    """What a set is called: `Group 1: target.name=toy, seed=0`; "" where there is only one."""
    if len(sets) == 1:
        return ""
    words = apart_words(number, conditions_of_sets(sets))
    return f"Group {number + 1}: {', '.join(words)}"


def _fastest(groups: Sequence[Group], content: Content) -> list[str]:
    timed = [group for group in groups if group.speed is not None]
    if not timed:
        return ["Nothing was timed."]
    best = timed[0]
    if len(groups) == 1:
        return [f"{best.label}: {why(best)[0]}"]
    sentences = [f"The fastest of {len(groups)} configurations is {best.label}: {why(best)[0]}"]
    pairs = [pair for pair in content.comparisons if pair.faster.number == best.number]
    if pairs:
        closest = min(pairs, key=lambda pair: pair.ratio)
        sentences.append(
            f"Over the next, {closest.slower.label}, it is {closest.ratio:.2f} times as fast"
            f"{_significance(closest, content.confidence)}: {closest.reason}"
        )
    return sentences


def _significance(pair: PairedComparison, confidence: float) -> str:
    """How sure the difference of the two is, in brackets; "" where nothing can be said."""
    p_value = pair.p_adjusted
    if p_value is None:
        return " (too few prompts for a test)" if pair.num_prompts < MIN_PROMPTS else ""
    doubt = "" if p_value <= 1 - confidence else ", so it may be chance"
    return f" (p {p_text(p_value)} over prompts{doubt})"


def warnings(content: Content) -> list[str]:
    """What a reader has to know before relying on the numbers."""
    groups, sets = content.groups, comparable_sets(content.groups)
    return [
        *([apart_sentence(conditions_of_sets(sets))] if len(sets) > 1 else []),
        *_of_prompts(sets),
        *_of_times(groups),
        *_incomplete(content),
    ]


def _of_prompts(sets: Sequence[Sequence[Group]]) -> Iterator[str]:
    if any(len({group.facts["prompts"] for group in groups}) > 1 for groups in sets):
        yield (
            "Not every run has answered all of its prompts. Tests between two are over those that "
            "both answered; compare the other numbers with care."
        )


def _of_times(groups: Sequence[Group]) -> Iterator[str]:
    if any(group.numbers.speedup is None and not group.is_plain for group in groups):
        yield (
            "Where no speed over plain decoding stands, it was not measured in the same run: "
            "seconds of runs at different times compare machines as well as methods. "
            "task=benchmark measures both at once."
        )
    whole = sum(not group.numbers.shares and not group.is_plain for group in groups)
    if whole:
        yield (
            f"What makes a pass dear, drafting or verifying, was not measured for {whole} of "
            f"{counted(len(groups), 'configuration')}: task.split=true does."
        )


def _incomplete(content: Content) -> Iterator[str]:
    """What is missing of runs and of traces, and numbers that are no method's."""
    runs = content.listed.folders
    if any(
        (run.summary.get("overall") or {}).get("method", run.summary).get("synthetic")
        for run in runs
    ):
        yield "A drafter here was told the text (synthetic): its numbers are no method's."
    for run in runs:
        done = len(run.answers) + run.num_errors
        if run.num_planned and done < run.num_planned:
            yield f"{run.name} answered {done} of {run.num_planned} prompts so far."
        if run.num_errors:
            yield f"{run.name}: {counted(run.num_errors, 'prompt')} could not be answered."
        yield from (f"{run.name}: {failure}" for failure in run.summary.get("failures") or [])
    for name, reader in content.traces.items():
        if reader.num_left_out:
            yield (
                f"{name}: the trees of {reader.num_left_out} later steps are left out "
                f"(task.max_steps={reader.max_steps})."
            )
