"""The roofline of a device as a picture: what the device allows, and the passes below that.

A pass that does x operations for each byte that it reads can reach at most x times the bytes a
second of the device, and at most its operations a second (Williams, Waterman and Patterson 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

from specframe.costs.ceilings import Ceilings, MeasuredPass
from specframe.report.canvas import MUTED, SERIES, canvas

_GIGA = 1e9


def roofline(passes: Sequence[MeasuredPass], ceilings: Ceilings, *, title: str) -> str:
    """SVG text: operations a second over operations a byte, both on logarithmic axes."""
    top = ceilings.operations_per_s / _GIGA
    knee = ceilings.operations_per_s / ceilings.bytes_per_s  # operations a byte
    across = [each.intensity for each in passes] + [knee]
    left, right = min(across) / 2, 3 * max(across)
    with canvas("roofline", width=7.6, height=4.9) as figure:
        panel = figure.axes[0]
        panel.set_title(title)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("operations a byte; figures beside points: rows")
        panel.set_ylabel("10^9 operations a second")
        slope = ceilings.bytes_per_s / _GIGA
        panel.plot([left, knee, right], [left * slope, top, top], color=MUTED, linewidth=2)
        for place, context in enumerate(sorted({each.context for each in passes})):
            points = [each for each in passes if each.context == context]
            colour = SERIES[place % len(SERIES)]
            speeds = [1e3 * each.operations / each.ms / _GIGA for each in points]
            panel.plot(
                [each.intensity for each in points],
                speeds,
                "o",
                color=colour,
                markersize=6,
                label=f"behind {context} tokens",
            )
            # Labels of every other context stand above, so that they do not meet.
            offset = (2, 6) if place % 2 else (2, -13)
            for each, speed in zip(points, speeds, strict=True):
                spot = (each.intensity, speed)
                panel.annotate(
                    str(each.rows), spot, offset, textcoords="offset points", color=colour
                )
        panel.set_xlim(left, right)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.legend(loc="lower right")
        return figure.document(title)
