"""What a benchmark prints: tables of one method, or of several sides beside each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from specframe.measure.clock import PHASES
from specframe.task.benchmark.comparison import Comparison, SideSummary
from specframe.task.benchmark.machine import memory_sentence
from specframe.task.benchmark.passes import PassTimes
from specframe.task.benchmark.scoreboard import OVERALL
from specframe.task.benchmark.sides import BASELINE, METHOD
from specframe.task.benchmark.verdict import BenchmarkVerdict
from specframe.terminal.text_table import percent, plain_console, shown, text_table, with_interval

_GB, _MB = 1e9, 1e6
_WIDE = 150  # columns of a terminal in which the two tables of sides fit beside each other
Numbers = dict[str, Any]
Printed = Table | str


def show(printed: Sequence[Printed], verdict: BenchmarkVerdict, *, folder: Path) -> None:
    """Print tables and lines, then what the verdict says, then the run's folder."""
    console = plain_console()
    for part in printed:
        console.print(part, soft_wrap=isinstance(part, str))
    for sentence in verdict.sentences:
        console.print(sentence, soft_wrap=True)
    for sentence in verdict.failures:
        console.print(f"FAILED: {sentence}", soft_wrap=True)
    console.print(f"written to {os.path.relpath(folder)}", soft_wrap=True)


def method_printout(summary: Numbers) -> list[Printed]:
    """The numbers of a method and its baseline; summary: of `scoreboard.summary`."""
    overall = summary["overall"]
    if overall is None:
        return []
    tables = [_acceptance(summary), _speed(summary)]
    if overall[METHOD]["acceptance_by_depth"]:
        tables.append(_by_depth(overall[METHOD]))
    return [*tables, _times(overall), *_method_lines(summary, overall)]


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
            yield f"time of {name} (synchronised): {', '.join(shares)}"
    for start, numbers in overall[METHOD].get("starts", {}).items():
        yield (
            f"{numbers['num_answers']} answers began {start}: acceptance_length "
            f"{shown(numbers['acceptance_length'])}, {shown(numbers['tokens_per_s'], 1)} tokens/s"
        )
    logprobs = {name: side.get("target_logprob") for name, side in sides.items()}
    known = [f"{name} {mean:.3f}" for name, mean in logprobs.items() if mean is not None]
    if known:
        yield f"mean log-probability under the target: {', '.join(known)}"
    if "num_compared" in overall and overall["num_same_text"] < overall["num_compared"]:
        yield (
            f"agreement with the exact text: {percent(overall['agreement_prefix'])} of tokens "
            f"before the first difference, {percent(overall['agreement_tokens'])} place by place"
        )
    for score, right in overall.get("scores", {}).items():
        shares = [f"{name} {percent(right[name])}" for name in sides if name in right]
        yield f"{score} right: {', '.join(shares)} of {right['num_judged']}"
    if summary["peak_memory_bytes"] is not None:
        yield f"peak memory {summary['peak_memory_bytes'] / _MB:.0f} MB"


def _ranged(numbers: Numbers, key: str, side: Numbers) -> str:
    return with_interval(side[key], numbers["intervals"].get(key))


def comparison_printout(comparison: Comparison, sides: Sequence[SideSummary]) -> list[Printed]:
    """Several sides beside each other. What was not measured is left out."""
    printed: list[Printed] = []
    if sides:
        printed += _measured(comparison, sides)
    return [*printed, *(f"left out: {s}: {why}" for s, why in comparison.lineup.left_out.items())]


def _measured(comparison: Comparison, sides: Sequence[SideSummary]) -> Iterator[Printed]:
    yield from _sides(sides)
    if any(len(side.categories) > 1 for side in sides):
        yield "decoding over our own plain decoding, by category"
        yield _categories(sides)
    if any(side.steps for side in sides):
        yield "ms of a step, by a clock that waits; gaps: share in which no kernel ran"
        yield _steps(sides, comparison.gaps or {})
    for times in comparison.passes:
        yield from _passes(times)
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


def _passes(times: PassTimes) -> Iterator[Printed]:
    yield (
        f"ms of a pass behind {times.context} tokens: {times.target}, runtime={times.runtime}; "
        f"a plain step {times.step_ms[0]:.3g}"
    )
    copy, moved = times.copy_bytes_per_s, times.moved
    headings = ["rows", "ms", "of one row"]
    for name in times.peers:
        headings += [name, f"ours / {name} 1 row"]
    headings += ["GB/s", "of a copy's"] if moved and copy else []
    rows = []
    for place, (count, ms) in enumerate(zip(times.rows, times.forward_ms, strict=True)):
        cells = [str(count), f"{ms:.4g}", f"{ms / times.forward_ms[0]:.2f}"]
        for theirs in times.peers.values():
            cells += [f"{theirs[place]:.4g}", f"{ms / theirs[0]:.2f}"]
        if moved and copy:
            rate = 1e3 * moved[place] / ms
            cells += [f"{rate / _GB:.1f}", f"{100 * rate / copy:.0f} %"]
        rows.append(cells)
    yield text_table(headings, rows, num_names=0, fold="names")
    if moved and copy:
        yield (
            f"a pass has to read {moved[0] / _MB:.0f} MB of weights and keys; a copy here moves "
            f"{copy / _GB:.1f} GB/s"
        )


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
