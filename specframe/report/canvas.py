"""Axes to draw on, and their SVG in the page's own colours and type, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specframe.errors import MissingResource

# matplotlib writes these colours, the page reads the variables of page.css in their place.
_VARIABLES = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--line)",
    "#040404": "var(--page)",
    "#050505": "var(--good)",
    **{f"#0601{index:02d}": f"var(--c{index})" for index in range(8)},
    **{f"#0701{index:02d}": f"var(--phase{index})" for index in range(5)},
}
INK, MUTED, LINE, PAGE, GOOD = list(_VARIABLES)[:5]
SERIES = list(_VARIABLES)[5:13]
PHASE_COLOURS = list(_VARIABLES)[13:]
_SIZE = 9.5  # points; the page shows a figure at about its own size


class Canvas:
    """One figure. name: what tells its parts from those of other figures in the page."""

    def __init__(self, figure: Any, name: str, axes: Sequence[Any]) -> None:
        self.figure = figure
        self.name = name
        self.axes = axes

    def svg(self, label: str) -> str:
        """The picture, for a page; label: what it shows, for who does not see it."""
        held = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        self.figure.savefig(held, format="svg", transparent=True, metadata=nothing)
        text = held.getvalue()
        text = text[text.index("<svg") :]
        for colour, variable in _VARIABLES.items():
            text = text.replace(colour, variable)
        # Several pictures stand in one page: an id must be one figure's own.
        text = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{self.name}-", text)
        text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)
        return text.replace("<svg", f'<svg role="img" aria-label="{_quoted(label)}"', 1)


@contextmanager
def canvas(
    name: str, *, columns: int = 1, width: float = 7.6, height: float = 4.0
) -> Iterator[Canvas]:
    """A figure of so many panels, in inches. Raises MissingResource without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingResource(
            "task=report draws with matplotlib, which is not installed; pip install matplotlib"
        ) from None
    with matplotlib.rc_context(_style(name)):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
        for one in axes:
            one.spines[["top", "right"]].set_visible(False)
            one.tick_params(length=0, pad=6)
        yield Canvas(figure, name, list(axes))


def _style(name: str) -> Any:
    """Settings of matplotlib, whose own type of their keys changes with its version."""
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
        "text.parse_math": False,  # a label is text, whatever it holds
    }


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
