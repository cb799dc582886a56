"""The pictures of the report: speed, acceptance by depth, quality; and all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.report.canvas import GOOD, MUTED, PAGE, SERIES, canvas
from specframe.report.cost_bars import token_cost
from specframe.report.groups import Group
from specframe.report.labels import Labels
from specframe.report.lossiness import agreement_percent, frontier, logprob_gap
from specframe.report.marks import add_legend, shape

Dot = tuple[Group, tuple[float, float]]  # a configuration and its place in a panel
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


def pictures(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """All pictures of configurations that can be compared, each `wide` and `narrow`.

    {} stands for a picture that would be empty.
    """
    drawn = {
        "speed": speed_by_acceptance,
        "cost": token_cost,
        "depth": acceptance_by_depth,
        "quality_plot": quality_by_speed,
    }
    sizes = {
        name: {"wide": draw(groups, narrow=False), "narrow": draw(groups, narrow=True)}
        for name, draw in drawn.items()
    }
    return {name: size if size["wide"] else {} for name, size in sizes.items()}


def speed_by_acceptance(groups: Sequence[Group], *, narrow: bool) -> str:
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
    with canvas(**shape("speed", groups, narrow=narrow, height=4.0)) as figure:
        panel = figure.axes[0]
        panel.set_xlabel("acceptance length, tokens a pass")
        panel.set_ylabel("speed over plain decoding" if over else "tokens a second")
        right = 1.08 * max(2.0, *(length for _, length, _ in shown))
        panel.set_xlim(0.9, right)
        tops = [_top(group, speed) for group, _, speed in shown]
        panel.set_ylim(0, 1.12 * max(1.05 if over else 0.0, *tops))
        guides = _guides(panel, [length / speed for _, length, speed in shown], over=over)
        dots = [(group, (length, speed)) for group, length, speed in shown]
        for group, place in dots:
            _dot(panel, group, place, tints[group.number], over=over)
        if len(groups) > len(SERIES):
            names = {tints[group.number]: str(group.facts.get("drafter.name")) for group in groups}
            add_legend(panel, names, narrow=narrow)
        labels = _numbered(panel, dots, tints)
        if over:
            panel.axhline(1, color=MUTED, linewidth=1)
            labels.add("plain decoding", [(0.85 * right, 1), (1.3, 1)], needed=False)
        for text, places in guides:
            labels.add(text, places, needed=False)
        return figure.svg("Speed against acceptance length, a dot a configuration")


def acceptance_by_depth(groups: Sequence[Group], *, narrow: bool) -> str:
    """How often a level is accepted: of all drafts that had it, and once the walk reached it."""
    shown = [group for group in groups if group.numbers.depths][:_MAX_CURVES]
    if not shown:
        return ""
    tints = colours(groups)
    with canvas(**shape("depth", groups, narrow=narrow, height=3.3, panels=2)) as figure:
        ends: dict[Any, list[Dot]] = {panel: [] for panel in figure.axes}
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
                    ends[panel].append((group, (places[-1], rates[-1])))
        figure.axes[0].set_ylabel("accepted, %")
        for panel, dots in ends.items():
            _numbered(panel, dots, tints)
        return figure.svg("Share accepted by depth, a line a configuration")


def quality_by_speed(groups: Sequence[Group], *, narrow: bool) -> str:
    """Speed against what a text lost, with the frontier; "" if no rule is lossy."""
    if all(group.lossless is not False for group in groups):
        return ""
    panels = [
        ("tokens as in the exact text, %", agreement_percent),
        ("log-probability under the target, less plain decoding's", logprob_gap),
    ]
    tints = colours(groups)
    with canvas(**shape("quality", groups, narrow=narrow, height=3.4, panels=2)) as figure:
        ends: dict[Any, list[Dot]] = {}
        for panel, (title, measure) in zip(figure.axes, panels, strict=True):
            points = [
                (group, lost, group.numbers.speedup)
                for group in groups
                if (lost := measure(group)) is not None and group.numbers.speedup
            ]
            panel.set_xlabel(title)
            dots = [(group, (lost, speed)) for group, lost, speed in points]
            for group, place in dots:
                _dot(panel, group, place, tints[group.number], over=True, bars=False)
            front = frontier([(lost, speed) for _, lost, speed in points])
            panel.plot(*zip(*front, strict=True), color=GOOD, linewidth=1, zorder=1) if front else 0
            panel.margins(0.15)
            ends[panel] = dots
        figure.axes[0].set_ylabel("speed over plain decoding")
        for panel, dots in ends.items():
            _numbered(panel, dots, tints)
        return figure.svg("Speed against quality, a dot a configuration, with the frontier")


def _top(group: Group, speed: float) -> float:
    ends = group.numbers.speedup_ends
    return max(speed, ends[1]) if ends and group.numbers.speedup else speed


def _guides(
    panel: Any, costs: Sequence[float], *, over: bool
) -> list[tuple[str, list[tuple[float, float]]]]:
    """Lines on which a pass costs the same: speed = acceptance length / cost.

    Returns what each is called, and places along it, from its end on.
    """
    (left, right), (_, top) = panel.get_xlim(), panel.get_ylim()
    if not over:
        costs = [1e3 * cost for cost in costs]
    low, high = min(costs) / 1.6, max(costs) * 1.6
    wanted = [cost for cost in _STEPS if low <= cost <= high][:6]
    named = []
    for cost in wanted:
        slope = (1 if over else 1e3) / cost
        end = min(right, top / slope)
        panel.plot([left, end], [left * slope, end * slope], color=MUTED, linewidth=0.7, ls=":")
        unit = ("step" if cost == 1 else "steps") if over else "ms"
        along = [left + share * (end - left) for share in (0.94, 0.8, 0.65)]
        named.append((f"{cost:g} {unit}", [(x, x * slope) for x in along]))
    return named


def _numbered(panel: Any, dots: Sequence[Dot], tints: dict[int, str]) -> Labels:
    """The numbers of configurations beside their dots, where they cover nothing."""
    labels = Labels(panel)
    for _, place in dots:
        labels.avoid(place, radius=5)
    for group, place in dots:
        labels.add(str(group.number), [place], needed=True, colour=tints[group.number])
    return labels


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
        markersize=9,
        markeredgecolor=PAGE,
        zorder=3,
        gid=f"dot-{group.number}",
    )
