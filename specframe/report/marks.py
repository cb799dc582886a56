"""What the pictures of the report share: names, legends and small labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specframe.report.groups import Group


def picture_id(name: str, groups: Sequence[Group]) -> str:
    """The name of a picture, which is the first of its kind or that of a later set."""
    first = groups[0].number
    return name if first == 1 else f"{name}{first}"


def shape(
    name: str, groups: Sequence[Group], *, narrow: bool, height: float, panels: int = 1
) -> dict[str, Any]:
    """What `canvas` is given for a picture: its name, size and panels.

    narrow: for a screen as small as a telephone's, where panels stand below each other. height: in
    inches, of the wide picture.
    """
    called = picture_id(name, groups)
    if not narrow:
        return {"name": called, "columns": panels, "height": height}
    return {"name": f"{called}n", "rows": panels, "width": 4.0, "height": panels * height}


def add_legend(panel: Any, names: dict[str, str], *, narrow: bool) -> None:
    """Colour -> what it stands for, above the panel."""
    from matplotlib.patches import Patch

    panel.legend(
        handles=[Patch(color=colour, label=name) for colour, name in names.items()],
        loc="lower right",
        bbox_to_anchor=(1, 1.02),
        ncols=3 if narrow else 8,
        handlelength=1,
        columnspacing=1.2,
        handletextpad=0.5,
    )
