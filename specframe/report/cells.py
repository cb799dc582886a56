"""Cells of a table, with what they say and what they sort by, and columns that make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specframe.report.groups import Group


@dataclass(frozen=True, kw_only=True)
class Cell:
    """text: as shown; value: what it sorts by, None last; note: said beside it, smaller."""

    text: str
    value: float | str | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """columns: (heading, what it means). numbers: whether a column is set to the right."""

    name: str
    columns: Sequence[tuple[str, str]]
    numbers: Sequence[bool]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Column:
    """heading and what it means; cell: of one thing; number: set to the right."""

    heading: str
    means: str
    cell: Callable[[Any], Cell]
    number: bool = True


def make_table(name: str, columns: Sequence[Column], things: Sequence[Any]) -> Table:
    """Columns in which nothing stands are left out."""
    cells = [[column.cell(one) for one in things] for column in columns]
    kept = [index for index, column in enumerate(cells) if any(cell.text for cell in column)]
    return Table(
        name=name,
        columns=[(columns[index].heading, columns[index].means) for index in kept],
        numbers=[columns[index].number for index in kept],
        rows=[[cells[index][row] for index in kept] for row in range(len(things))],
    )


def of_numbers(heading: str, means: str, name: str, digits: int) -> Column:
    """A column of one of `Numbers`, with its interval beside it where it has one."""

    def cell(one: Group) -> Cell:
        held = getattr(one.numbers, name)
        ends = {
            "acceptance_length": one.numbers.acceptance_ends,
            "speedup": one.numbers.speedup_ends,
        }.get(name)
        note = f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}" if ends and held is not None else ""
        return Cell(text=number(held, digits).text, value=held, note=note)

    return Column(heading, means, cell)


def share(heading: str, means: str, of: Callable[[Group], float | None]) -> Column:
    """A column of shares, in percent."""

    def cell(one: Group) -> Cell:
        held = of(one)
        return Cell(text="" if held is None else f"{100 * held:.1f} %", value=held)

    return Column(heading, means, cell)


def number(held: float | None, digits: int, *, sign: bool = False) -> Cell:
    """A number with so many digits after the point; nothing for None."""
    if held is None:
        return Cell(text="")
    return Cell(text=f"{held:{'+' if sign else ''}.{digits}f}", value=held)


def count(held: int) -> Cell:
    """A count."""
    return Cell(text=str(held), value=held)


def plainly(value: Any) -> str:
    """A manifest's value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def counted(many: object, thing: str) -> str:
    """A number and its noun: `1 run`, `2 runs`."""
    return f"{many} {thing}{'' if many == 1 else 's'}"
