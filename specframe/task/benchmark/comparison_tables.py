"""A comparison on the terminal: sides, categories, steps, passes and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from specframe.measure.clock import PHASES
from specframe.task.benchmark.comparison import Line
from specframe.task.benchmark.passes import Passes

_GB, _MB = 1e9, 1e6
_WIDE = 150  # columns that all there is to say of a side takes
Column = tuple[str, Callable[[Line], str]]


def tables_of(
    lines: Sequence[Line],
    machine: dict[str, Any] | None,
    passes: Sequence[Passes],
    *,
    width: int,
) -> list[Table | str]:
    """What is printed of a comparison; machine: `gaps` by side and `memory`, if they were taken;
    width: columns of the terminal."""
    found: list[Table | str] = [*_sides(lines, width)]
    if any(len(one.categories) > 1 for one in lines):
        found += ["decoding over our own plain decoding, by category", _categories(lines)]
    if any(one.steps for one in lines):
        title = "ms of a step, by a clock that waits; gaps: share in which no kernel ran"
        found += [title, _steps(lines, {} if machine is None else machine["gaps"])]
    for one in passes:
        title = (
            f"ms of a pass behind {one.context} tokens: {one.target}, runtime={one.runtime}; "
            f"a plain step {one.step_ms[0]:.3g}"
        )
        found += [title, _passes(one), *_bandwidth(one)]
    if machine is not None and machine["memory"] is not None:
        found.append(_memory(machine["memory"]))
    return found


def _sides(lines: Sequence[Line], width: int) -> list[Table]:
    """In one table, or two where that would not fit."""
    halves = [_SPEED, _COUNTS]
    columns = [_SPEED + _COUNTS] if width >= _WIDE else halves
    tables = []
    for chosen in columns:
        table = _table([heading for heading, _ in chosen])
        for one in lines:
            label = one.label + (" (synthetic)" if one.synthetic else "")
            table.add_row(label, *(cell(one) for _, cell in chosen))
        tables.append(table)
    return tables


def _categories(lines: Sequence[Line]) -> Table:
    ours = [one for one in lines if not one.peer and one.name != one.exact and one.categories]
    names = list(dict.fromkeys(name for one in ours for name in one.categories))
    table = _table(names)
    for one in ours:
        table.add_row(one.label, *(_number(one.categories.get(name)) for name in names))
    return table


def _steps(lines: Sequence[Line], gaps: dict[str, float | None]) -> Table:
    table = _table(["all", *PHASES, "gaps"])
    for one in lines:
        if one.steps:
            phases = [one.steps.get(phase, 0.0) for phase in PHASES]
            gap = gaps.get(one.name)
            cells = [f"{sum(phases):.3g}", *(f"{ms:.3g}" for ms in phases)]
            table.add_row(one.label, *cells, "n/a" if gap is None else _percent(gap))
    return table


def _passes(one: Passes) -> Table:
    headings = ["ms", "of one row"]
    for name in one.peers:
        headings += [name, f"ours / {name} 1 row"]
    moved = one.moved is not None and one.copy_bytes_per_s
    headings += ["GB/s", "of a copy's"] if moved else []
    table = _table(headings, first="rows")
    for place, rows in enumerate(one.rows):
        ms = one.forward_ms[place]
        cells = [f"{ms:.4g}", f"{ms / one.forward_ms[0]:.2f}"]
        for theirs in one.peers.values():
            cells += [f"{theirs[place]:.4g}", f"{ms / theirs[0]:.2f}"]
        if one.moved is not None and one.copy_bytes_per_s:
            rate = 1e3 * one.moved[place] / ms
            cells += [f"{rate / _GB:.1f}", f"{100 * rate / one.copy_bytes_per_s:.0f} %"]
        table.add_row(str(rows), *cells)
    return table


def _bandwidth(one: Passes) -> list[str]:
    if one.moved is None or one.copy_bytes_per_s is None:
        return []
    return [
        f"a pass has to read {one.moved[0] / _MB:.0f} MB of weights and keys; a copy here moves "
        f"{one.copy_bytes_per_s / _GB:.1f} GB/s"
    ]


def _memory(held: dict[str, Any]) -> str:
    if "error" in held:
        return f"memory could not be measured: {held['error']}"
    if held["ratio"] is None:
        return "memory: this target has no weights"
    parts = {key: held[f"{key}_bytes"] / _MB for key in ("peak", "weights", "cache", "before")}
    return (
        f"memory of the composed method alone, loading included: peak {parts['peak']:.0f} MB, "
        f"{held['ratio']:.2f} of one copy of the target's weights ({parts['weights']:.0f} MB) and "
        f"the cache ({parts['cache']:.0f} MB); Python and its libraries hold "
        f"{parts['before']:.0f} MB beside it"
    )


def _table(headings: Sequence[str], first: str = "") -> Table:
    # A table's own title would be broken to the table's width: titles are lines before it.
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold", justify="right" if first else "left")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _number(number: float | None, digits: int = 2) -> str:
    return "" if number is None else f"{number:.{digits}f}"


def _share(count: int | None, of: int) -> str:
    return "" if count is None else f"{count}/{of}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


# over plain: of the same target by us, with prefill; decode: without it.
_SPEED: list[Column] = [
    ("seconds", lambda one: "" if one.synthetic else f"{one.seconds:.2f}"),
    ("tokens/s", lambda one: _number(one.tokens_per_s, 1)),
    ("over plain", lambda one: _number(one.speedup)),
    ("decode", lambda one: _number(one.speedup_decode)),
    ("over peer", lambda one: _number(one.over_peer)),
]
_COUNTS: list[Column] = [
    ("efficiency", lambda one: "" if one.peer else _number(one.efficiency)),
    ("forwards", lambda one: "" if one.num_forwards is None else str(one.num_forwards)),
    ("acceptance", lambda one: _number(one.acceptance_length)),
    ("outside", lambda one: _percent(one.outside)),
    ("same text", lambda one: _share(one.num_same_text, one.num_texts)),
]
