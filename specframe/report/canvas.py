"""Axes to draw on, and their SVG in the colours of the report's page, light or dark.

matplotlib draws with placeholders for colours, which are replaced in the text of the SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any

from specframe.errors import MissingResource

# Placeholder that matplotlib writes -> the variable of page.css that it stands for.
_VARIABLES = {
    "#010101": "ink",
    "#020202": "muted",
    "#030303": "line",
    "#040404": "page",
    "#050505": "good",
    "#060000": "unsplit",
    **{f"#0601{index:02d}": f"c{index}" for index in range(8)},
    **{f"#0701{index:02d}": f"phase{index}" for index in range(5)},
}
INK, MUTED, LINE, PAGE, GOOD, UNSPLIT = list(_VARIABLES)[:6]
SERIES = list(_VARIABLES)[6:14]
PHASE_COLOURS = list(_VARIABLES)[14:]
_SIZE = 9.5  # points; the page shows a figure at about its own size


class Canvas:
    """One figure with its panels.

    name: of the figure, from letters; it keeps ids apart where several figures stand in one page.
    """

    def __init__(self, figure: Any, name: str, axes: Sequence[Any]) -> None:
        self.figure = figure
        self.name = name
        self.axes = axes

    def svg(self, label: str) -> str:
        """The picture as an element of the report's page, in the colours of the page's style.

        label: what the picture shows, for readers who cannot see it.
        """
        text = self._drawn(label, transparent=True)
        for colour, variable in _VARIABLES.items():
            text = text.replace(colour, f"var(--{variable})")
        return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)

    def document(self, label: str) -> str:
        """The picture as an SVG file of its own, which follows the reader's light or dark scheme.

        A viewer that knows no style sheets shows the light one.
        """
        text = self._drawn(label, facecolor=PAGE)
        light, dark = _palettes()
        rules = []
        for colour, variable in _VARIABLES.items():
            if colour in text:
                shown = light[variable]
                text = text.replace(colour, shown)
                rules += [
                    f'[style*="{kind}: {shown}"] {{ {kind}: {dark[variable]} !important }}'
                    for kind in ("fill", "stroke")
                ]
        scheme = "\n".join(["@media (prefers-color-scheme: dark) {", *rules, "}"])
        return text.replace("<defs>", f"<style>\n{scheme}\n</style>\n <defs>", 1)

    def _drawn(self, label: str, **options: Any) -> str:
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        self.figure.savefig(buffer, format="svg", metadata=nothing, **options)
        text = buffer.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{self.name}-", text)
        return text.replace("<svg", f'<svg role="img" aria-label="{_quoted(label)}"', 1)


@cache
def _palettes() -> tuple[dict[str, str], dict[str, str]]:
    """The variables of page.css, light and dark: the style of the page names every colour."""
    style = (resources.files("specframe.report") / "assets" / "page.css").read_text("utf-8")
    light, dark = re.findall(r"^:root.*?^}", style, re.DOTALL | re.MULTILINE)[:2]
    pattern = re.compile(r"--(\w+): (#\w{6})")
    return dict(pattern.findall(light)), dict(pattern.findall(dark))


@contextmanager
def canvas(
    name: str, *, columns: int = 1, rows: int = 1, width: float = 7.6, height: float = 4.0
) -> Iterator[Canvas]:
    """A figure with so many panels beside and below each other; width and height are in inches.

    Raises MissingResource without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingResource(
            "pictures are drawn with matplotlib, which is not installed; pip install matplotlib"
        ) from None
    with matplotlib.rc_context(_style(name)):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for panel in axes:
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(length=0, pad=6)
        yield Canvas(figure, name, list(axes))


def _style(name: str) -> Any:
    """Settings for matplotlib, whose own type for their keys changes with its version."""
    return {
        "svg.fonttype": "none",  # text stays text, in the page's type
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": _SIZE,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.titlecolor": INK,
        "axes.titlesize": _SIZE + 1,
        "axes.titlelocation": "left",
        "axes.titlepad": 10,
        "axes.edgecolor": LINE,
        "axes.facecolor": "none",
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": LINE,
        "grid.linewidth": 0.6,
        "xtick.color": LINE,
        "ytick.color": LINE,
        "xtick.labelcolor": MUTED,
        "ytick.labelcolor": MUTED,
        "legend.frameon": False,
        "legend.labelcolor": MUTED,
        "figure.facecolor": "none",
        "text.parse_math": False,  # a $ in a label is a $
    }


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
