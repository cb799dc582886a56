"""Rows of plain values as a table, for notebooks and scripts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class RowTable(Sequence[Mapping[str, Any]]):
    """Rows with named columns: a sequence of mappings, which pandas.DataFrame takes as it is.

    A notebook shows it as a table. A column that a row lacks is empty there.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = [dict(row) for row in rows]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order in which rows first have them."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_markdown(self) -> str:
        """The table in Markdown, numbers shortened."""
        lines = [self.columns, ["---"] * len(self.columns), *self._cells()]
        return "\n".join("| " + " | ".join(_escaped(line)) + " |" for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
            for line in self._cells()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _cells(self) -> list[list[str]]:
        return [[_text(row.get(name)) for name in self.columns] for row in self.rows]

    def __repr__(self) -> str:
        return self.to_markdown() if self.rows else "no rows"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _escaped(cells: Sequence[str]) -> list[str]:
    """A cell of a Markdown table must not end it, nor its line."""
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
