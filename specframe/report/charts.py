"""The pictures of the report: speed, what a token costs, acceptance by depth, quality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.measure.clock import PHASES
from specframe.report.canvas import GOOD, INK, MUTED, PAGE, PHASE_COLOURS, SERIES, canvas
from specframe.report.groups import Group
from specframe.report.lossiness import agreement_percent, frontier, logprob_gap

_MAX_CURVES = 8  # there are no more colours that can be told apart
_STEPS = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 25, 40, 60, 100, 200, 400, 1000)


def colours(groups: Sequence[Group]) -> dict[int, str]:
    """Number of a configuration -> its colour, which is its drafter's where there are many."""
    if len(groups) <= len(SERIES):
        return {group.number: SERIES[index] for index, group in enumerate(groups)}
    words = list(dict.fromkeys(str(group.facts.get("drafter.name")) for group in groups))
    return {
        group.number: SERIES[words.index(str(group.facts.get("drafter.name"))) % len(SERIES)]
        for group in groups
    }


def speed_by_acceptance(groups: Sequence[Group]) -> str:
    """A dot for each configuration, over lines of equal pass cost; "" if nothing was timed."""
    over = any(group.numbers.speedup for group in groups)
    shown = [
        (group, length, speed)
        for group in groups
        if (length := group.numbers.acceptance_length) is not None
        and (speed := group.numbers.speedup if over else group.numbers.tokens_per_s) is not None
    ]
    if not shown:
        return ""
    tints = colours(groups)
    with canvas("speed") as figure:
        panel = figure.axes[0]
        panel.set_xlabel("acceptance length, tokens a pass")
        panel.set_ylabel("speed over plain decoding" if over else "tokens a second")
        right = 1.08 * max(2.0, *(length for _, length, _ in shown))
        panel.set_xlim(0.9, right)
        tops = [_top(group, speed) for group, _, speed in shown]
        panel.set_ylim(0, 1.12 * max(1.05 if over else 0.0, *tops))
        if over:
            panel.axhline(1, color=MUTED, linewidth=1)
            panel.annotate("plain decoding", (right, 1), (0, 4), **_small("right"))
        _guides(panel, [length / speed for _, length, speed in shown], over=over)
        for group, length, speed in shown:
            _dot(panel, group, (length, speed), tints[group.number], over=over)
        if len(groups) > len(SERIES):
            names = {tints[group.number]: str(group.facts.get("drafter.name")) for group in groups}
            _legend(panel, names)
        return figure.svg("Speed against acceptance length, a dot a configuration")


def token_cost(groups: Sequence[Group]) -> str:
    """A bar for each configuration: the time of a token by phase, in plain steps if known."""
    shown = [group for group in groups if group.numbers.acceptance_length and group.numbers.pass_ms]
    if not shown:
        return ""
    over = any(group.numbers.pass_cost is not None for group in shown)
    if over:
        shown = [group for group in shown if group.numbers.pass_cost is not None]
    with canvas("cost", height=0.9 + 0.36 * len(shown)) as figure:
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
            names[MUTED] = "not split"
        _legend(panel, names)
        return figure.svg("Time of one token by phase, a bar a configuration")


def acceptance_by_depth(groups: Sequence[Group]) -> str:
    """How often a level is accepted: of all drafts that had it, and once the walk reached it."""
    shown = [group for group in groups if group.numbers.depths][:_MAX_CURVES]
    if not shown:
        return ""
    tints = colours(groups)
    with canvas("depth", columns=2, height=3.3) as figure:
        for panel, base, title in zip(
            figure.axes, (0, 1), ("of drafts that deep", "once reached"), strict=True
        ):
            panel.set_title(title)
            panel.set_ylim(0, 104)
            panel.set_xlabel("depth")
            panel.xaxis.get_major_locator().set_params(integer=True)
            for group in shown:
                counts = [each for each in enumerate(group.numbers.depths, 1) if each[1][base]]
                rates = [100 * each[2] / each[base] for _, each in counts]
                places = [depth for depth, _ in counts]
                panel.plot(places, rates, color=tints[group.number], marker="o", markersize=4)
                if places:
                    panel.annotate(
                        f"{group.number}", (places[-1], rates[-1]), (6, -3), **_small("left")
                    )
        figure.axes[0].set_ylabel("accepted, %")
        return figure.svg("Share accepted by depth, a line a configuration")


def quality_by_speed(groups: Sequence[Group]) -> str:
    """Speed against what a text lost, with the frontier; "" if no rule is lossy."""
    if all(group.lossless is not False for group in groups):
        return ""
    panels = [
        ("tokens as in the exact text, %", agreement_percent),
        ("log-probability under the target, less plain decoding's", logprob_gap),
    ]
    tints = colours(groups)
    with canvas("quality", columns=2, height=3.4) as figure:
        for panel, (title, measure) in zip(figure.axes, panels, strict=True):
            points = [
                (group, lost, group.numbers.speedup)
                for group in groups
                if (lost := measure(group)) is not None and group.numbers.speedup
            ]
            panel.set_xlabel(title)
            for group, lost, speed in points:
                _dot(panel, group, (lost, speed), tints[group.number], over=True, bars=False)
            front = frontier([(lost, speed) for _, lost, speed in points])
            panel.plot(*zip(*front, strict=True), color=GOOD, linewidth=1, zorder=1) if front else 0
            panel.margins(0.15)
        figure.axes[0].set_ylabel("speed over plain decoding")
        return figure.svg("Speed against quality, a dot a configuration, with the frontier")


def _top(group: Group, speed: float) -> float:
    ends = group.numbers.speedup_ends
    return max(speed, ends[1]) if ends and group.numbers.speedup else speed


def _guides(panel: Any, costs: Sequence[float], *, over: bool) -> None:
    """Lines on which a pass costs the same: speed = acceptance length / cost."""
    (left, right), (_, top) = panel.get_xlim(), panel.get_ylim()
    if not over:
        costs = [1e3 * cost for cost in costs]
    low, high = min(costs) / 1.6, max(costs) * 1.6
    wanted = [cost for cost in _STEPS if low <= cost <= high][:6]
    for cost in wanted:
        slope = (1 if over else 1e3) / cost
        end = min(right, top / slope)
        panel.plot([left, end], [left * slope, end * slope], color=MUTED, linewidth=0.7, ls=":")
        unit = ("step" if cost == 1 else "steps") if over else "ms"
        text = f"{cost:g} {unit}"
        panel.annotate(text, (end, end * slope), (-3, 4), **_small("right"))


def _dot(
    panel: Any,
    group: Group,
    place: tuple[float, float],
    colour: str,
    *,
    over: bool,
    bars: bool = True,
) -> None:
    numbers = group.numbers
    if bars and over and numbers.speedup_ends:
        panel.plot([place[0]] * 2, numbers.speedup_ends, color=colour, linewidth=1.2, zorder=2)
    if bars and numbers.acceptance_ends:
        panel.plot(numbers.acceptance_ends, [place[1]] * 2, color=colour, linewidth=1.2, zorder=2)
    if bars and len(group.runs) > 1:
        for run in group.runs:
            speed = run.numbers.speedup if over else run.numbers.tokens_per_s
            panel.plot(run.numbers.acceptance_length, speed, ".", color=colour, markersize=4)
    mark = "o" if group.lossless is not False else "D"
    panel.plot(
        *place,
        mark,
        color=colour,
        markersize=13,
        markeredgecolor=PAGE,
        zorder=3,
        gid=f"dot-{group.number}",
    )
    panel.annotate(
        str(group.number),
        place,
        ha="center",
        va="center",
        color=PAGE,
        fontsize=8,
        zorder=4,
        fontweight="bold",
    )


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
        panel.barh(row, whole, height=0.56, color=MUTED, alpha=0.45)
    panel.annotate(f"{whole:.2f}" if over else f"{whole:.1f}", (whole, row), (5, -3), **_small())


def _legend(panel: Any, names: dict[str, str]) -> None:
    """Colour -> what it stands for, above the panel."""
    from matplotlib.patches import Patch

    panel.legend(
        handles=[Patch(color=colour, label=name) for colour, name in names.items()],
        loc="lower right",
        bbox_to_anchor=(1, 1.02),
        ncols=8,
        handlelength=1,
        columnspacing=1.2,
        handletextpad=0.5,
    )


def _name(group: Group) -> str:
    label = group.label if len(group.label) <= 44 else f"{group.label[:43]}…"
    return f"{label}  {group.number}"


def _small(side: str = "left") -> dict[str, Any]:
    return {"textcoords": "offset points", "ha": side, "color": MUTED, "fontsize": 8}
