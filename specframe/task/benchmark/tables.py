"""The tables of a benchmark: on the terminal, plain when piped, and as CSV."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from specframe.task.benchmark.scoreboard import OVERALL
from specframe.task.benchmark.sides import BASELINE, METHOD
from specframe.task.benchmark.verdict import BenchmarkVerdict

_PIPED_WIDTH = 200  # columns, so that no line is broken where there is no terminal
Numbers = dict[str, Any]
Column = tuple[str, Callable[[Numbers], str]]


def show(
    found: Numbers, said: BenchmarkVerdict, *, folder: Path, instead: Sequence[Table | str] = ()
) -> None:
    """Print what was measured; instead: of a comparison, in the place of the method's own."""
    console = terminal()
    overall = found["overall"]
    for one in instead or ([] if overall is None else _own(found, overall)):
        console.print(one, soft_wrap=isinstance(one, str))
    for sentence in said.sentences:
        console.print(sentence, soft_wrap=True)
    for sentence in said.failures:
        console.print(f"FAILED: {sentence}", soft_wrap=True)
    console.print(f"written to {os.path.relpath(folder)}", soft_wrap=True)


def terminal() -> Console:
    """Where tables go: the terminal, or a wide page where there is none."""
    console = Console(highlight=False, emoji=False, markup=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, emoji=False, markup=False, width=_PIPED_WIDTH)


def _own(found: Numbers, overall: Numbers) -> list[Table | str]:
    """What is printed of a method."""
    tables = [_acceptance(found), _speed(found)]
    if overall[METHOD]["acceptance_by_depth"]:
        tables.append(_by_depth(overall[METHOD]))
    return [*tables, _times(overall), *_lines(found, overall)]


def write_csv(path: Path, found: Numbers) -> None:
    """A row a category, and one overall; nested numbers as dotted columns."""
    lines = [
        {"category": name, **_flat(numbers)}
        for name, numbers in (*found["categories"].items(), (OVERALL, found["overall"]))
        if numbers is not None
    ]
    columns = list(dict.fromkeys(column for line in lines for column in line))
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(lines)
    os.replace(partial, path)


def _acceptance(found: Numbers) -> Table:
    columns: list[Column] = [
        ("prompts", lambda one: str(one["num_prompts"])),
        ("acceptance_length", lambda one: _ranged(one, "acceptance_length", one[METHOD])),
        (
            "over prompts",
            lambda one: _number(one[METHOD]["acceptance_length_mean_over_prompts"]),
        ),
        ("accepted", lambda one: str(one[METHOD]["num_accepted"])),
    ]
    if found["overall"][METHOD]["acceptance_rate"] is not None:
        columns.append(("rate", lambda one: _number(one[METHOD]["acceptance_rate"])))
    if "num_compared" in found["overall"]:
        columns.append(("same text", lambda one: f"{one['num_same_text']}/{one['num_compared']}"))
    return _by_category(found, columns)


def _speed(found: Numbers) -> Table:
    columns: list[Column] = [("tokens/s", lambda one: _number(one[METHOD]["tokens_per_s"], 1))]
    if BASELINE in found["overall"]:
        columns += [
            ("none", lambda one: _number(one[BASELINE]["tokens_per_s"], 1)),
            ("speedup", lambda one: _ranged(one, "speedup", one)),
            ("end to end", lambda one: _number(one["speedup_end_to_end"])),
            ("efficiency", lambda one: _number(one["efficiency"])),
        ]
    return _by_category(found, columns)


def _by_category(found: Numbers, columns: list[Column]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("category", no_wrap=True)
    for heading, _ in columns:
        table.add_column(heading, justify="right", overflow="fold")
    for name, numbers in (*found["categories"].items(), (OVERALL, found["overall"])):
        table.add_row(name, *(cell(numbers) for _, cell in columns))
    return table


def _by_depth(method: Numbers) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title="accepted by depth", title_justify="left")
    for heading in ("depth", "steps", "reached", "accepted", "marginal", "conditional"):
        table.add_column(heading, justify="right")
    for one in method["acceptance_by_depth"]:
        counts = (one[key] for key in ("depth", "num_drafted", "num_opportunities", "num_accepted"))
        rates = (_number(one[key], 3) for key in ("marginal_rate", "conditional_rate"))
        table.add_row(*map(str, counts), *rates)
    return table


def _times(overall: Numbers) -> Table:
    """Seconds and latencies of each side."""
    table = Table(box=None, padding=(0, 2, 0, 0), title="times", title_justify="left")
    headings = ("", "prefill s", "decode s", "first token ms", "per token ms p50", "p95")
    for heading in (*headings, "per step ms p50", "p95"):
        table.add_column(heading, justify="left" if not heading else "right")
    keys = [f"between_{one}_p{percent}_ms" for one in ("tokens", "steps") for percent in (50, 95)]
    for name in (BASELINE, METHOD):
        if name in overall:
            one = overall[name]
            table.add_row(
                name,
                *(_number(one[key]) for key in ("prefill_s", "decode_s")),
                *(_number(one[key], 1) for key in ("first_token_p50_ms", *keys)),
            )
    return table


def _lines(found: Numbers, overall: Numbers) -> list[str]:
    lines = []
    for name in (BASELINE, METHOD):
        split = overall.get(name, {}).get("split")
        if split is not None:
            wall = split["wall_ms"]
            parts = [
                f"{key.removesuffix('_ms')} {100 * spent / wall:.1f} %"
                for key, spent in split.items()
                if key not in ("wall_ms", "covered")
            ]
            lines.append(f"time of {name} (synchronised): {', '.join(parts)}")
    for start, one in overall[METHOD].get("starts", {}).items():
        lines.append(
            f"{one['num_answers']} answers began {start}: acceptance_length "
            f"{_number(one['acceptance_length'])}, {_number(one['tokens_per_s'], 1)} tokens/s"
        )
    logprobs = {
        name: overall[name]["target_logprob"]
        for name in (METHOD, BASELINE)
        if overall.get(name, {}).get("target_logprob") is not None
    }
    if logprobs:
        told = ", ".join(f"{name} {one:.3f}" for name, one in logprobs.items())
        lines.append(f"mean log-probability under the target: {told}")
    if "num_compared" in overall and overall["num_same_text"] < overall["num_compared"]:
        lines.append(
            f"agreement with the exact text: {100 * overall['agreement_prefix']:.1f} % of tokens "
            f"before the first difference, {100 * overall['agreement_tokens']:.1f} % place by place"
        )
    for score, one in overall.get("scores", {}).items():
        shares = [f"{name} {100 * one[name]:.1f} %" for name in (METHOD, BASELINE) if name in one]
        lines.append(f"{score} right: {', '.join(shares)} of {one['num_judged']}")
    if found["peak_memory_bytes"] is not None:
        lines.append(f"peak memory {found['peak_memory_bytes'] / 1e6:.0f} MB")
    return lines


def _ranged(numbers: Numbers, key: str, where: Numbers) -> str:
    ends = numbers["intervals"].get(key)
    return _number(where[key]) + ("" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]")


def _number(number: float | None, digits: int = 2) -> str:
    return "" if number is None else f"{number:.{digits}f}"


def _flat(numbers: Numbers, above: str = "") -> Numbers:
    found: Numbers = {}
    for key, held in numbers.items():
        name = f"{above}{key}"
        if isinstance(held, dict):
            found |= _flat(held, f"{name}.")
        elif isinstance(held, list) and held and isinstance(held[0], dict):
            for one in held:
                depth = one["depth"]
                kept = {k: v for k, v in one.items() if k != "depth"}
                found |= _flat(kept, f"{name}.{depth}.")
        elif isinstance(held, list | tuple):
            ends = zip(("low", "high"), held, strict=False)
            found |= {f"{name}.{end}": number for end, number in ends}
        else:
            found[name] = held
    return found
