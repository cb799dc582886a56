"""Throughput against the speed of one lane: where each method of a run stops paying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specframe.report.canvas import INK, SERIES, canvas
from specframe.report.cells import Cell, Column, Table, count, make_table, number
from specframe.report.marks import add_legend
from specframe.report.runs import FinishedRun

Point = Mapping[str, Any]  # a method at one number of lanes, as metrics.json has it


@dataclass(frozen=True, kw_only=True)
class LaneCurves:
    """What a benchmark with task.batch_sizes measured."""

    run: str  # its name
    sentences: Sequence[str]
    pictures: dict[str, str]  # "wide" and "narrow", as SVG
    table: Table


def lane_curves(runs: Sequence[FinishedRun]) -> list[LaneCurves]:
    """Those of the runs that have any."""
    found = []
    for place, run in enumerate(runs):
        points = [one for one in run.summary.get("batches") or [] if one["throughput"]]
        if points:
            sizes = {"wide": False, "narrow": True}
            drawn = {size: _drawn(points, place, narrow=small) for size, small in sizes.items()}
            curves = LaneCurves(
                run=run.name, sentences=_sentences(points), pictures=drawn, table=_table(points)
            )
            found.append(curves)
    return found


def _methods(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Label -> its points, by numbers of lanes."""
    labels = dict.fromkeys(str(point["label"]) for point in points)
    return {
        label: sorted((p for p in points if p["label"] == label), key=lambda p: p["batch_size"])
        for label in labels
    }


def _is_plain(points: Sequence[Point]) -> bool:
    return all(point["throughput_ratio"] == 1 for point in points)


def _sentences(points: Sequence[Point]) -> list[str]:
    """What plain decoding reaches, and up to how many lanes each other method pays."""
    methods = _methods(points)
    plain = [one for own in methods.values() if _is_plain(own) for one in own]
    found = []
    if plain:
        best = max(plain, key=lambda point: point["throughput"])
        found.append(
            f"Plain decoding is fastest with {_lanes(best)}: {best['throughput']:.1f} tokens/s."
        )
    for label, own in methods.items():
        ratios = [(point, point["throughput_ratio"]) for point in own if point["throughput_ratio"]]
        if _is_plain(own) or not ratios:
            continue
        paying = [point for point, ratio in ratios if ratio > 1]
        last = paying[-1] if paying else None
        least = min(ratios, key=lambda pair: pair[1])
        ends = f"with {_lanes(least[0])} it has {least[1]:.2f} times the tokens of plain decoding"
        if last is None:
            found.append(f"{label} pays at no number of lanes that was measured; {ends}.")
        elif least[1] >= 1:
            found.append(f"{label} pays up to {_lanes(last)}, the most that were measured.")
        else:
            found.append(f"{label} pays up to {_lanes(last)}; {ends}.")
    return found


def _lanes(point: Point) -> str:
    return f"{point['batch_size']} lane{'s' if point['batch_size'] > 1 else ''}"


def _drawn(points: Sequence[Point], place: int, *, narrow: bool) -> str:
    """A curve for each method: to the right a lane is faster, further up all lanes together are."""
    methods = _methods([point for point in points if point["ms_per_token"]])
    size: dict[str, Any] = {"width": 4.0, "height": 3.6} if narrow else {"height": 4.0}
    name = f"lanes{place}{'n' if narrow else ''}"
    with canvas(name=name, **size) as figure:
        panel = figure.axes[0]
        panel.set_xlabel("tokens a second of one lane")
        panel.set_ylabel("of all lanes together")
        tints: dict[str, str] = {}
        for index, (label, own) in enumerate(methods.items()):
            tint = SERIES[index % len(SERIES)]
            tints[tint] = label
            across = [1e3 / point["ms_per_token"] for point in own]
            up = [point["throughput"] for point in own]
            panel.plot(across, up, color=tint, marker="o", markersize=4)
            for point, x, y in zip(own, across, up, strict=True):
                panel.annotate(
                    str(point["batch_size"]),
                    (x, y),
                    xytext=(4, 4),
                    textcoords="offset points",
                    color=INK,
                )
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
        add_legend(panel, tints, narrow=narrow)
        return figure.svg("Throughput of all lanes against the speed of one, a line a method")


def _table(points: Sequence[Point]) -> Table:
    rows = [point for own in _methods(points).values() for point in own]

    def of(heading: str, means: str, key: str, digits: int) -> Column:
        return Column(heading, means, lambda point: number(point[key], digits))

    return make_table(
        "lanes",
        [
            Column("method", "", lambda point: Cell(text=str(point["label"])), number=False),
            Column("lanes", "answers decoded at once", lambda point: count(point["batch_size"])),
            of("tokens/s", "of all lanes, prefill included", "throughput", 1),
            of("all full", "the same while every lane was under way", "full_throughput", 1),
            of("ms/token", "of one lane", "ms_per_token", 1),
            of("over plain", "over plain decoding in as many lanes", "throughput_ratio", 2),
            of("over its best", "over plain decoding in its best lanes", "over_best_plain", 2),
            Column(
                "same text",
                "texts that are what their prompt gets alone",
                lambda point: Cell(text=f"{point['num_same_text']}/{point['num_texts']}"),
            ),
        ],
        rows,
    )
