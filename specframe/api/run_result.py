"""What a task leaves, for a notebook: its numbers and tables, its folder, what it printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.session.row_table import RowTable


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult:
    """A finished run of a task.

    exit_code: 0, or 1 where the task's own verdict is negative. numbers: what its JSON file says.
    tables: by name; the first is the one that the result is shown as.
    """

    task: str
    folder: Path
    exit_code: int
    printed: str
    numbers: dict[str, Any]
    tables: dict[str, RowTable]

    @property
    def rows(self) -> RowTable:
        """The first table."""
        return next(iter(self.tables.values()), RowTable([]))

    def to_markdown(self) -> str:
        """The first table in Markdown."""
        return self.rows.to_markdown()

    def __repr__(self) -> str:
        return f"task={self.task}, exit code {self.exit_code}, in {self.folder}\n{self.rows!r}"

    def _repr_html_(self) -> str:
        return self.rows._repr_html_()
