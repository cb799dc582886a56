"""The roofline of a device as a picture: what it allows, and the passes below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from specframe.costs.ceilings import Ceilings, MeasuredPass

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 680, 440, 76, 24, 56, 64  # pixels
_COLOURS = ("#08519c", "#a63603", "#006d2c", "#6a51a3")


def roofline(passes: Sequence[MeasuredPass], ceilings: Ceilings, *, title: str) -> str:
    """SVG text: operations a second over operations a byte, both logarithmic."""
    plot = _Plot(passes, ceilings)
    knee = ceilings.operations_per_s / ceilings.bytes_per_s
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="12" y="24" font-size="14">{escape(title)}</text>',
        *plot.axes(),
        plot.line([plot.low, (knee, ceilings.operations_per_s), plot.high(ceilings)]),
    ]
    contexts = sorted({one.context for one in passes})
    for one in passes:
        place = contexts.index(one.context)
        # Labels of every other context stand above, so that they do not meet.
        lines += plot.point(one, _COLOURS[place % len(_COLOURS)], above=place % 2 == 1)
    for place, context in enumerate(contexts):
        colour = _COLOURS[place % len(_COLOURS)]
        y = _HEIGHT - _BOTTOM - 14 - 18 * place
        lines.append(f'<circle cx="{_WIDTH - 190}" cy="{y - 4}" r="4" fill="{colour}"/>')
        lines.append(f'<text x="{_WIDTH - 180}" y="{y}">behind {context} tokens</text>')
    return "\n".join([*lines, "</svg>", ""])


class _Plot:
    """Places of a logarithmic plot around all passes."""

    def __init__(self, passes: Sequence[MeasuredPass], ceilings: Ceilings) -> None:
        knee = ceilings.operations_per_s / ceilings.bytes_per_s
        across = [one.intensity for one in passes] + [knee]
        up = [1e3 * one.operations / one.ms for one in passes] + [ceilings.operations_per_s]
        self._x = (math.log10(min(across)) - 0.3, math.log10(max(across)) + 0.5)
        self._y = (math.log10(min(up)) - 0.3, math.log10(max(up)) + 0.3)
        left = 10 ** self._x[0]
        self.low = (left, left * ceilings.bytes_per_s)

    def high(self, ceilings: Ceilings) -> tuple[float, float]:
        """The right end of the roof."""
        return 10 ** self._x[1], ceilings.operations_per_s

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        across = (math.log10(x) - self._x[0]) / (self._x[1] - self._x[0])
        up = (math.log10(y) - self._y[0]) / (self._y[1] - self._y[0])
        inner = (_WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM)
        return _LEFT + inner[0] * across, _HEIGHT - _BOTTOM - inner[1] * max(up, 0.0)

    def line(self, points: Sequence[tuple[float, float]]) -> str:
        """The roof."""
        shown = " ".join("{:.1f},{:.1f}".format(*self.place(*point)) for point in points)
        return f'<polyline points="{shown}" fill="none" stroke="#444444" stroke-width="2"/>'

    def point(self, one: MeasuredPass, colour: str, *, above: bool) -> list[str]:
        """A pass, with its rows beside it."""
        x, y = self.place(one.intensity, 1e3 * one.operations / one.ms)
        label = y - 8 if above else y + 16
        return [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
            f'<text x="{x + 2:.1f}" y="{label:.1f}" fill="{colour}">{one.rows}</text>',
        ]

    def axes(self) -> list[str]:
        """Powers of ten, and what they are of."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        lines = [
            f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" '
            'fill="none" stroke="#cccccc"/>'
        ]
        for power in range(math.ceil(self._x[0]), math.floor(self._x[1]) + 1):
            x, _ = self.place(10.0**power, 10 ** self._y[0])
            lines.append(_label(x, bottom + 18, f"{10.0**power:g}"))
        for power in range(math.ceil(self._y[0]), math.floor(self._y[1]) + 1):
            _, y = self.place(10 ** self._x[0], 10.0**power)
            lines.append(_label(_LEFT - 8, y + 4, f"{10.0 ** (power - 9):g}", anchor="end"))
        middle = (_LEFT + right) / 2
        lines.append(_label(middle, _HEIGHT - 16, "operations a byte; figures beside points: rows"))
        lines.append(_label(12, _TOP - 10, "10^9 operations a second", anchor="start"))
        return lines


def _label(x: float, y: float, text: str, *, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
