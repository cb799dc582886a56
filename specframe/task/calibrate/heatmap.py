"""A table of shares as a picture: shaded cells of text, and an SVG file."""

from __future__ import annotations

from collections.abc import Sequence

from specframe.report.canvas import INK, LINE, PAGE, SERIES, canvas

_SHADES = " ░▒▓█"
_CELL, _HEIGHT = 0.56, 0.32  # inches of a cell


def cell(share: float) -> str:
    """A share in percent, with a block that is darker for a larger share."""
    shade = _SHADES[min(int(_strength(share) * len(_SHADES)), len(_SHADES) - 1)]
    return f"{100 * share:.1f}{shade}"


def heatmap(table: Sequence[Sequence[float]], *, reached: Sequence[int], title: str) -> str:
    """SVG text of a table [D][K] of shares, depth 1 on top; reached [D]: how many were judged."""
    from matplotlib.patches import Rectangle

    depths, ranks = len(table), len(table[0])
    width = max(1.6 + _CELL * ranks, 5.0)
    with canvas("heatmap", width=width, height=1.0 + _HEIGHT * depths) as figure:
        panel = figure.axes[0]
        panel.set_title(title)
        panel.set_ylabel("depth (judged)")
        panel.grid(visible=False)
        panel.spines[:].set_visible(False)
        panel.xaxis.tick_top()
        panel.set_xticks([rank + 0.5 for rank in range(ranks)], [f"rank {r}" for r in range(ranks)])
        labels = [f"{depth} ({count})" for depth, count in enumerate(reached, start=1)]
        panel.set_yticks([depth + 0.5 for depth in range(depths)], labels)
        panel.set_xlim(0, ranks)
        panel.set_ylim(depths, 0)
        for depth, row in enumerate(table):
            for rank, share in enumerate(row):
                strength = _strength(share)
                fill = (SERIES[0], strength)
                square = Rectangle((rank, depth), 0.96, 0.94, facecolor=fill, edgecolor=LINE)
                panel.add_patch(square)
                colour = PAGE if strength > 0.65 else INK
                place = (rank + 0.48, depth + 0.47)
                panel.annotate(f"{100 * share:.1f}", place, ha="center", va="center", color=colour)
        return figure.document(title)


def _strength(share: float) -> float:
    """How strongly a share is shaded: by its square root, since most ranks are below a tenth."""
    return float(share**0.5)
