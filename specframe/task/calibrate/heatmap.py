"""A table of shares as a picture: shaded cells of text, and an SVG that any browser shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_SHADES = " ░▒▓█"
_CELL, _HEIGHT, _LEFT, _TOP = 54, 30, 96, 62  # pixels


def cell(share: float) -> str:
    """A share in percent with a block that is the darker the more it is."""
    # By the square root: of ten ranks most are below a tenth.
    shade = _SHADES[min(int(share**0.5 * len(_SHADES)), len(_SHADES) - 1)]
    return f"{100 * share:.1f}{shade}"


def heatmap(table: Sequence[Sequence[float]], *, reached: Sequence[int], title: str) -> str:
    """SVG text of a table [D][K] of shares, depth 1 on top; reached [D]: how many were judged."""
    width = _LEFT + _CELL * len(table[0]) + 16
    height = _TOP + _HEIGHT * len(table) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="14">{escape(title)}</text>',
        _text(_LEFT - 8, _TOP - 10, "depth (judged)", anchor="end"),
    ]
    for rank in range(len(table[0])):
        lines.append(_text(_LEFT + _CELL * (rank + 0.5), _TOP - 10, f"rank {rank}"))
    for depth, (row, count) in enumerate(zip(table, reached, strict=True)):
        top = _TOP + _HEIGHT * depth
        lines.append(_text(_LEFT - 8, top + 20, f"{depth + 1} ({count})", anchor="end"))
        for rank, share in enumerate(row):
            lines += _square(_LEFT + _CELL * rank, top, share)
    return "\n".join([*lines, "</svg>", ""])


def _square(left: float, top: float, share: float) -> list[str]:
    strength = share**0.5
    return [
        f'<rect x="{left}" y="{top}" width="{_CELL - 2}" height="{_HEIGHT - 2}" fill="#08519c" '
        f'fill-opacity="{strength:.3f}" stroke="#cccccc"/>',
        _text(
            left + _CELL / 2 - 1,
            top + 19,
            f"{100 * share:.1f}",
            colour="white" if strength > 0.5 else "black",
        ),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "middle", colour: str = "black") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
