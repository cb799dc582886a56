"""Cells of a table, what they say and what they sort by; columns that make cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specframe.report.groups import Group


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str  # as shown
    value: float | str | None = None  # what the row sorts by; None comes last
    note: str = ""  # shown beside the text, smaller


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the page, in the form that its template reads."""

    name: str
    columns: Sequence[tuple[str, str]]  # heading, and what it means
    numbers: Sequence[bool]  # whether a column has numbers, which are set to the right
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Column:
    """How a column of a table is made."""

    heading: str
    means: str  # what the heading means
    cell: Callable[[Any], Cell]  # the cell of one row's thing, such as a configuration
    number: bool = True  # whether it has numbers


def make_table(name: str, columns: Sequence[Column], things: Sequence[Any]) -> Table:
    """A table with a row for each thing. Columns without any text are left out."""
    cells = [[column.cell(thing) for thing in things] for column in columns]
    shown = [index for index, column in enumerate(cells) if any(cell.text for cell in column)]
    return Table(
        name=name,
        columns=[(columns[index].heading, columns[index].means) for index in shown],
        numbers=[columns[index].number for index in shown],
        rows=[[cells[index][row] for index in shown] for row in range(len(things))],
    )


def of_numbers(heading: str, means: str, name: str, digits: int) -> Column:
    """A column of one field of `Numbers`, with its interval beside it where it has one."""

    def cell(group: Group) -> Cell:
        value = getattr(group.numbers, name)
        ends = {
            "acceptance_length": group.numbers.acceptance_ends,
            "speedup": group.numbers.speedup_ends,
        }.get(name)
        note = f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}" if ends and value is not None else ""
        return Cell(text=number(value, digits).text, value=value, note=note)

    return Column(heading, means, cell)


def share(heading: str, means: str, of: Callable[[Group], float | None]) -> Column:
    """A column of shares, in percent."""

    def cell(group: Group) -> Cell:
        value = of(group)
        return Cell(text="" if value is None else f"{100 * value:.1f} %", value=value)

    return Column(heading, means, cell)


def number(value: float | None, digits: int, *, sign: bool = False) -> Cell:
    """A cell of a number with so many digits behind the point; empty for None."""
    if value is None:
        return Cell(text="")
    return Cell(text=f"{value:{'+' if sign else ''}.{digits}f}", value=value)


def count(value: int) -> Cell:
    """A cell of a count."""
    return Cell(text=str(value), value=value)


def plainly(value: Any) -> str:
    """A value of a manifest as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def counted(many: object, thing: str) -> str:
    """A number and its noun: `1 run`, `2 runs`."""
    return f"{many} {thing}{'' if many == 1 else 's'}"
