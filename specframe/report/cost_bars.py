"""Where the time of a token goes: a bar for each configuration, split by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.measure.clock import PHASES
from specframe.report.canvas import INK, PHASE_COLOURS, UNSPLIT, canvas
from specframe.report.groups import Group
from specframe.report.marks import add_legend, picture_id, small


def token_cost(groups: Sequence[Group]) -> str:
    """A bar for each configuration: the time of a token by phase, in plain steps if known."""
    shown = [group for group in groups if group.numbers.acceptance_length and group.numbers.pass_ms]
    if not shown:
        return ""
    over = any(group.numbers.pass_cost is not None for group in shown)
    if over:
        shown = [group for group in shown if group.numbers.pass_cost is not None]
    with canvas(picture_id("cost", groups), height=0.9 + 0.36 * len(shown)) as figure:
        panel = figure.axes[0]
        for row, group in enumerate(shown):
            _bar(panel, row, group, over=over)
        panel.set_yticks(range(len(shown)), [_name(group) for group in shown])
        panel.set_ylim(len(shown) - 0.4, -0.6)
        panel.grid(visible=False, axis="y")
        panel.set_xlabel("time of one token, in steps of plain decoding" if over else "ms a token")
        if over:
            panel.axvline(1, color=INK, linewidth=1)
        split = any(group.numbers.shares for group in shown)
        names = dict(zip(PHASE_COLOURS, PHASES, strict=True)) if split else {}
        if any(not group.numbers.shares for group in shown):
            names[UNSPLIT] = "not split"
        add_legend(panel, names)
        return figure.svg("Time of one token by phase, a bar a configuration")


def _bar(panel: Any, row: int, group: Group, *, over: bool) -> None:
    numbers = group.numbers
    assert numbers.pass_ms is not None and numbers.acceptance_length is not None
    whole = (numbers.pass_cost if over else numbers.pass_ms) or 0.0
    whole /= numbers.acceptance_length
    left = 0.0
    for index, phase in enumerate(PHASES):
        share = numbers.shares.get(phase)
        if share is not None:
            panel.barh(row, whole * share, left=left, height=0.56, color=PHASE_COLOURS[index])
            left += whole * share
    if not numbers.shares:
        panel.barh(row, whole, height=0.56, color=UNSPLIT)
    panel.annotate(f"{whole:.2f}" if over else f"{whole:.1f}", (whole, row), (5, -3), **small())


def _name(group: Group) -> str:
    label = group.label if len(group.label) <= 44 else f"{group.label[:43]}…"
    return f"{label}  {group.number}"
