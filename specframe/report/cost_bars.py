"""Where the time of a token goes: a bar for each configuration, split by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.measure.clock import PHASES
from specframe.report.canvas import INK, MUTED, PAGE, PHASE_COLOURS, UNSPLIT, canvas
from specframe.report.groups import Group
from specframe.report.marks import add_legend, shape

_NAME, _NARROW_NAME = 44, 18  # most letters of a configuration's name


def token_cost(groups: Sequence[Group], *, narrow: bool) -> str:
    """A bar for each configuration: the time of a token by phase, in plain steps if known."""
    shown = [group for group in groups if group.numbers.acceptance_length and group.numbers.pass_ms]
    if not shown:
        return ""
    over = any(group.numbers.pass_cost is not None for group in shown)
    if over:
        shown = [group for group in shown if group.numbers.pass_cost is not None]
    height = 0.9 + 0.36 * len(shown) + (0.4 if narrow else 0.0)
    with canvas(**shape("cost", groups, narrow=narrow, height=height)) as figure:
        panel = figure.axes[0]
        wholes = [_bar(panel, row, group, over=over) for row, group in enumerate(shown)]
        longest = _NARROW_NAME if narrow else _NAME
        panel.set_yticks(range(len(shown)), [_name(group, longest) for group in shown])
        panel.set_xlim(0, 1.14 * max([1.0 if over else 0.0, *wholes]))  # with room for a number
        panel.set_ylim(len(shown) - 0.4, -0.6)
        panel.grid(visible=False, axis="y")
        panel.set_xlabel("time of a token, in plain steps" if over else "ms a token")
        if over:
            panel.axvline(1, color=INK, linewidth=1)
        split = any(group.numbers.shares for group in shown)
        names = dict(zip(PHASE_COLOURS, PHASES, strict=True)) if split else {}
        if any(not group.numbers.shares for group in shown):
            names[UNSPLIT] = "not split"
        add_legend(panel, names, narrow=narrow)
        return figure.svg("Time of one token by phase, a bar a configuration")


def _bar(panel: Any, row: int, group: Group, *, over: bool) -> float:
    """Draw a bar; returns its length."""
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
    text = f"{whole:.2f}" if over else f"{whole:.1f}"
    ground = {"facecolor": PAGE, "edgecolor": "none", "pad": 1}  # over the line of plain decoding
    place = {"textcoords": "offset points", "color": MUTED, "fontsize": 8.5, "bbox": ground}
    panel.annotate(text, (whole, row), (5, -3), **place)
    return whole


def _name(group: Group, longest: int) -> str:
    label = group.label if len(group.label) <= longest else f"{group.label[: longest - 1]}…"
    return f"{label}  {group.number}"
