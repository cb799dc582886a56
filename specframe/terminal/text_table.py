"""Tables of numbers as text: on the terminal, wide where the output is piped, and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from specframe.storage.whole_files import whole_file

_PIPED_WIDTH = 200  # columns, so that no line is broken where there is no terminal


def plain_console() -> Console:
    """Where tables go: the terminal, or a wide page where there is none. Texts stay as they are."""
    console = Console(highlight=False, emoji=False, markup=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, emoji=False, markup=False, width=_PIPED_WIDTH)


def text_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    num_names: int = 1,
    fold: Literal["names", "numbers"] = "names",
    gap: int = 2,
) -> Table:
    """A table without lines: `num_names` columns of names to the left, then columns of numbers.

    `fold` says which columns are broken over several lines where the terminal is too narrow. Rich
    breaks a long `title` at the table's width, so such a title is better printed as a line before.
    `gap` is the number of spaces between two columns.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), title=title, title_justify="left")
    for place, heading in enumerate(headings):
        is_name = place < num_names
        table.add_column(
            heading,
            justify="left" if is_name else "right",
            no_wrap=is_name != (fold == "names"),
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    return table


def shown(number: float | None, digits: int = 2) -> str:
    """A number with so many digits behind the point; nothing for None."""
    return "" if number is None else f"{number:.{digits}f}"


def with_interval(number: float | None, ends: Sequence[float] | None) -> str:
    """A number with its interval behind it: `2.31 [2.20, 2.43]`."""
    return shown(number) + ("" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]")


def counted(many: int, thing: str) -> str:
    """A number and its noun: `1 answer`, `2 answers`."""
    return f"{many} {thing}{'' if many == 1 else 's'}"


def percent(share: float | None) -> str:
    """A share in percent; nothing for None."""
    return "" if share is None else f"{100 * share:.1f} %"


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows under all their keys, in the order in which these occur; the file appears whole.

    A list or tuple, which is an interval, becomes the two columns `key.low` and `key.high`.
    """
    flat = [_with_ends(row) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    with (
        whole_file(path) as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(flat)


def _with_ends(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, list | tuple):
            flat |= {f"{key}.{end}": x for end, x in zip(("low", "high"), value, strict=False)}
        else:
            flat[key] = value
    return flat
