"""What a benchmark prints: tables of one method, or of several sides beside each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from specframe.measure.clock import PHASES
from specframe.task.benchmark.column_meanings import legend
from specframe.task.benchmark.comparison import Comparison, SideSummary
from specframe.task.benchmark.machine import memory_sentence
from specframe.task.benchmark.pass_table import printed_passes
from specframe.task.benchmark.scoreboard import OVERALL
from specframe.task.benchmark.sides import BASELINE, METHOD
from specframe.task.benchmark.verdict import BenchmarkVerdict
from specframe.terminal.text_table import (
    counted,
    percent,
    plain_console,
    shown,
    text_table,
    with_interval,
)

_MB = 1e6
_WIDE = 150  # columns of a terminal in which the two tables of sides fit beside each other
Numbers = dict[str, Any]
Printed = Table | Text | str


def show(printed: Sequence[Printed], verdict: BenchmarkVerdict, *, folder: Path) -> None:
    """Print tables and lines, what the verdict says, the run's folder, and what came out."""
    console = plain_console()
    for part in printed:
        console.print(part, soft_wrap=isinstance(part, str))
    for sentence in verdict.sentences:
        console.print(sentence, soft_wrap=True)
    for sentence in verdict.failures:
        console.print(f"FAILED: {sentence}", soft_wrap=True)
    console.print(f"written to {os.path.relpath(folder)}", soft_wrap=True)
    for sentence in verdict.conclusion:
        console.print(sentence, soft_wrap=True)


def method_printout(summary: Numbers) -> list[Printed]:
    """The numbers of a method and its baseline; summary: of `scoreboard.summary`."""
    overall = summary["overall"]
    if overall is None:
        return []
    tables = [_acceptance(summary), _speed(summary)]
    if overall[METHOD]["acceptance_by_depth"]:
        tables.append(_by_depth(overall[METHOD]))
    tables.append(_times(overall))
    explained = (part for table in tables for part in (table, legend(table), ""))
    return [*explained, *_method_lines(summary, overall)]


def _acceptance(summary: Numbers) -> Table:
    columns: dict[str, Callable[[Numbers], str]] = {
        "prompts": lambda row: str(row["num_prompts"]),
        "acceptance_length": lambda row: _ranged(row, "acceptance_length", row[METHOD]),
        "over prompts": lambda row: shown(row[METHOD]["acceptance_length_mean_over_prompts"]),
        "accepted": lambda row: str(row[METHOD]["num_accepted"]),
    }
    if summary["overall"][METHOD]["acceptance_rate"] is not None:
        columns["rate"] = lambda row: shown(row[METHOD]["acceptance_rate"])
    if "num_compared" in summary["overall"]:
        columns["same text"] = lambda row: f"{row['num_same_text']}/{row['num_compared']}"
    return _by_category(summary, columns)


def _speed(summary: Numbers) -> Table:
    columns: dict[str, Callable[[Numbers], str]] = {
        "tokens/s": lambda row: shown(row[METHOD]["tokens_per_s"], 1)
    }
    if BASELINE in summary["overall"]:
        columns["none"] = lambda row: shown(row[BASELINE]["tokens_per_s"], 1)
        columns["speedup"] = lambda row: _ranged(row, "speedup", row)
        columns["end to end"] = lambda row: shown(row["speedup_end_to_end"])
        columns["efficiency"] = lambda row: shown(row["efficiency"])
    return _by_category(summary, columns)


def _by_category(summary: Numbers, columns: dict[str, Callable[[Numbers], str]]) -> Table:
    rows = {**summary["categories"], OVERALL: summary["overall"]}
    return text_table(
        ["category", *columns],
        [(name, *(cell(row) for cell in columns.values())) for name, row in rows.items()],
        fold="numbers",
    )


def _by_depth(method: Numbers) -> Table:
    headings = ("depth", "steps", "reached", "accepted", "marginal", "conditional")
    counts = ("depth", "num_drafted", "num_opportunities", "num_accepted")
    rates = ("marginal_rate", "conditional_rate")
    rows = [
        (*(str(row[key]) for key in counts), *(shown(row[key], 3) for key in rates))
        for row in method["acceptance_by_depth"]
    ]
    return text_table(headings, rows, title="accepted by depth", num_names=0)


def _times(overall: Numbers) -> Table:
    """Seconds and latencies of each side."""
    headings = ("", "prefill s", "decode s", "first token ms", "per token ms p50", "p95")
    seconds = ("prefill_s", "decode_s")
    latencies = ["first_token_p50_ms"]
    latencies += [f"between_{x}_p{p}_ms" for x in ("tokens", "steps") for p in (50, 95)]
    rows = [
        (name, *(shown(side[key]) for key in seconds), *(shown(side[key], 1) for key in latencies))
        for name in (BASELINE, METHOD)
        if (side := overall.get(name)) is not None
    ]
    return text_table((*headings, "per step ms p50", "p95"), rows, title="times", fold="numbers")


def _method_lines(summary: Numbers, overall: Numbers) -> Iterator[str]:
    sides = {name: overall[name] for name in (METHOD, BASELINE) if name in overall}
    for name in reversed(sides):
        split = sides[name].get("split")
        if split is not None:
            phases = {key: ms for key, ms in split.items() if key not in ("wall_ms", "covered")}
            shares = [
                f"{key.removesuffix('_ms')} {percent(ms / split['wall_ms'])}"
                for key, ms in phases.items()
            ]
            yield f"The time of the {name}, by a clock that waits: {', '.join(shares)}."
    for start, numbers in overall[METHOD].get("starts", {}).items():
        yield (
            f"{counted(numbers['num_answers'], 'answer')} began {start}: "
            f"{shown(numbers['acceptance_length'])} tokens a pass, "
            f"{shown(numbers['tokens_per_s'], 1)} tokens/s."
        )
    logprobs = {name: side.get("target_logprob") for name, side in sides.items()}
    known = [f"{name} {mean:.3f}" for name, mean in logprobs.items() if mean is not None]
    if known:
        yield f"The mean log-probability of a token under the target: {', '.join(known)}."
    if "num_compared" in overall and overall["num_same_text"] < overall["num_compared"]:
        yield (
            f"Of the tokens, {percent(overall['agreement_prefix'])} stand before the first "
            f"difference from the exact text, and {percent(overall['agreement_tokens'])} are the "
            "same place by place."
        )
    for score, right in overall.get("scores", {}).items():
        shares = [f"{name} {percent(right[name])}" for name in sides if name in right]
        judged = counted(right["num_judged"], "answer")
        yield f"Right by its {score}, of {judged}: {', '.join(shares)}."
    if summary["peak_memory_bytes"] is not None:
        yield f"The peak memory was {summary['peak_memory_bytes'] / _MB:.0f} MB."


def _ranged(numbers: Numbers, key: str, side: Numbers) -> str:
    return with_interval(side[key], numbers["intervals"].get(key))


def comparison_printout(comparison: Comparison, sides: Sequence[SideSummary]) -> list[Printed]:
    """Several sides beside each other. What was not measured is left out."""
    printed: list[Printed] = []
    if sides:
        printed += _measured(comparison, sides)
    return [*printed, *(f"Left out: {s}: {why}" for s, why in comparison.lineup.left_out.items())]


def _measured(comparison: Comparison, sides: Sequence[SideSummary]) -> Iterator[Printed]:
    for table in _sides(sides):
        yield from (table, legend(table), "")
    if any(len(side.categories) > 1 for side in sides):
        yield "Speed of decoding over our own plain decoding, by category:"
        yield _categories(sides)
    if any(side.steps for side in sides):
        yield (
            "Milliseconds of a step by phase, by a clock that waits for the device; gaps is the "
            "share of the time in which no kernel ran:"
        )
        yield _steps(sides, comparison.gaps or {})
    for times in comparison.passes:
        yield from printed_passes(times)
    if comparison.memory is not None:
        yield memory_sentence(comparison.memory)


def _sides(sides: Sequence[SideSummary]) -> list[Table]:
    """All numbers of the sides, in two tables where the terminal is too narrow for one."""
    wide = plain_console().width >= _WIDE
    labels = [side.label + (" (synthetic)" if side.synthetic else "") for side in sides]
    return [
        text_table(
            ["", *columns],
            [
                (label, *(cell(side) for cell in columns.values()))
                for label, side in zip(labels, sides, strict=True)
            ],
        )
        for columns in ([_SPEED | _COUNTS] if wide else [_SPEED, _COUNTS])
    ]


def _categories(sides: Sequence[SideSummary]) -> Table:
    ours = [side for side in sides if not side.peer and side.name != side.exact]
    ours = [side for side in ours if side.categories]
    names = list(dict.fromkeys(name for side in ours for name in side.categories))
    rows = [(side.label, *(shown(side.categories.get(name)) for name in names)) for side in ours]
    return text_table(["", *names], rows)


def _steps(sides: Sequence[SideSummary], gaps: dict[str, float | None]) -> Table:
    rows = []
    for side in sides:
        phases = [side.steps.get(phase, 0.0) for phase in PHASES]
        if side.steps:
            times = [f"{ms:.3g}" for ms in (sum(phases), *phases)]
            rows.append((side.label, *times, percent(gaps.get(side.name)) or "n/a"))
    return text_table(["", "all", *PHASES, "gaps"], rows)


# over plain: tokens/s with prefill over our plain decoding of the same target; decode: without it.
_SPEED: dict[str, Callable[[SideSummary], str]] = {
    "seconds": lambda side: "" if side.synthetic else f"{side.seconds:.2f}",
    "tokens/s": lambda side: shown(side.tokens_per_s, 1),
    "over plain": lambda side: shown(side.speedup),
    "decode": lambda side: shown(side.speedup_decode),
    "over peer": lambda side: shown(side.over_peer),
}
_COUNTS: dict[str, Callable[[SideSummary], str]] = {
    "efficiency": lambda side: "" if side.peer else shown(side.efficiency),
    "forwards": lambda side: "" if side.num_forwards is None else str(side.num_forwards),
    "acceptance": lambda side: shown(side.acceptance_length),
    "outside": lambda side: percent(side.outside),
    "same text": lambda side: (
        "" if side.num_same_text is None else f"{side.num_same_text}/{side.num_texts}"
    ),
}
