"""What the pictures of the report share: names, legends and small labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.report.canvas import MUTED
from specframe.report.groups import Group


def picture_id(name: str, groups: Sequence[Group]) -> str:
    """The name of a picture, which is the first of its kind or that of a later set."""
    first = groups[0].number
    return name if first == 1 else f"{name}{first}"


def add_legend(panel: Any, names: dict[str, str]) -> None:
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


def small(side: str = "left") -> dict[str, Any]:
    return {"textcoords": "offset points", "ha": side, "color": MUTED, "fontsize": 8}
