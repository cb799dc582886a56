"""Small texts beside the points of a panel: each where it lies on nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from specframe.report.canvas import MUTED

_POINTS = 72  # a inch
_SIZE = 8.5  # points of a text's height; a letter is about 0.58 of that wide
_RINGS = (9.0, 14.0, 20.0, 27.0)  # points from a place to its text, nearest first
Box = tuple[float, float, float, float]  # left, bottom, right, top, in points


class Labels:
    """Places texts of one panel, once everything else is drawn and its layout is settled."""

    def __init__(self, panel: Any) -> None:
        self._panel = panel
        figure = panel.figure
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the texts must not move the axes any more
        width, height = figure.get_size_inches()
        self._page = (0.0, 0.0, _POINTS * width, _POINTS * height)
        self.boxes: list[Box] = []

    def avoid(self, place: tuple[float, float], *, radius: float) -> None:
        """Keep texts off a dot; place is in the panel's own units, radius in points."""
        x, y = self._in_points(place)
        self.boxes.append((x - radius, y - radius, x + radius, y + radius))

    def add(
        self, text: str, places: Sequence[tuple[float, float]], *, needed: bool, colour: str = MUTED
    ) -> None:
        """Write a text beside the first of some places that has room.

        needed: a text that has room nowhere is written where it covers least; else it is left out.
        """
        half = 0.29 * _SIZE * len(text) + 1, 0.6 * _SIZE
        best: tuple[float, tuple[float, float], tuple[float, float], Box] | None = None
        for place in places:
            x, y = self._in_points(place)
            for dx, dy in _around(half[0]):
                box = (x + dx - half[0], y + dy - half[1], x + dx + half[0], y + dy + half[1])
                covered = self._covered(box)
                if best is None or covered < best[0]:
                    best = (covered, place, (dx, dy), box)
                if not covered:
                    break
            if best is not None and not best[0]:
                break
        if best is None or (best[0] and not needed):
            return
        _, place, offset, box = best
        self.boxes.append(box)
        self._panel.annotate(
            text,
            place,
            offset,
            textcoords="offset points",
            ha="center",
            va="center",
            color=colour,
            fontsize=_SIZE,
            zorder=5,
        )

    def _in_points(self, place: tuple[float, float]) -> tuple[float, float]:
        x, y = self._panel.transData.transform(place)
        scale = _POINTS / self._panel.figure.dpi
        return float(x) * scale, float(y) * scale

    def _covered(self, box: Box) -> float:
        """Square points of what is there already that a box would cover, or that lie outside."""
        inside = _shared(box, self._page)
        outside = (box[2] - box[0]) * (box[3] - box[1]) - inside
        return outside + sum(_shared(box, other) for other in self.boxes)


def _around(half_width: float) -> Iterator[tuple[float, float]]:
    """Offsets of a text's middle from its place: above and to the sides first, then further out."""
    for ring in _RINGS:
        for eighth in (2, 0, 4, 1, 3, 6, 7, 5):
            turn = math.pi * eighth / 4
            yield (ring + half_width - 4) * math.cos(turn), ring * math.sin(turn)


def _shared(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)
