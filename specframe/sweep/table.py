"""The points of a sweep as one table: CSV, Parquet, and what a terminal shows of it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from specframe.storage.whole_files import whole_file
from specframe.sweep.point import FAILED, OK, SKIPPED, PointRecord, flat
from specframe.sweep.point_numbers import KEY_METRICS, Row, numbers_in

_LONGEST = 40  # characters of a value on the terminal


def rows_of(points: Sequence[PointRecord]) -> list[Row]:
    """A row for each point: status, settings that differ, numbers, reason, folder and hash."""
    varied = _varied(points)
    rows = []
    for point in points:
        settings = _settings(point)
        rows.append(
            {
                "status": point.status,
                **{key: settings.get(key) for key in varied},
                **(numbers_in(Path(point.directory)) if point.status == OK else {}),
                "seconds": point.seconds,
                "reason": point.reason,
                "directory": Path(point.directory).name,
                "config_hash": point.config_hash,
            }
        )
    return rows


def write(points: Sequence[PointRecord], sweep: Path) -> list[Path]:
    """Write the table as sweep.csv and sweep.parquet into the sweep's folder."""
    rows = rows_of(points)
    # Else a column that only some points have would come after these.
    last = ("seconds", "reason", "directory", "config_hash")
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name not in last]
    columns = [*names, *last]
    files = [sweep / "sweep.csv", sweep / "sweep.parquet"]
    for file, make in zip(files, (_csv, _parquet), strict=True):
        with whole_file(file) as partial:
            make(partial, rows, columns)
    return files


def summary(points: Sequence[PointRecord]) -> str:
    """The table as the terminal shows it: a line for each point, and how many ended how."""
    rows = rows_of(points)
    varied = _shown(points)
    metrics = [key for key in KEY_METRICS if any(row.get(key) is not None for row in rows)]
    lines = [["status", *varied, *metrics, "folder", ""]] if rows else []
    for row, point in zip(rows, points, strict=True):
        settings = [_short(row.get(key)) for key in varied]
        numbers = ["" if row.get(key) is None else f"{row[key]:.2f}" for key in metrics]
        where = os.path.relpath(point.directory)
        reason = point.reason or ("finished before" if point.reused else "")
        lines.append([row["status"], *settings, *numbers, where, reason])
    counts = [f"{sum(p.status == s for p in points)} {s}" for s in (OK, SKIPPED, FAILED)]
    return "\n".join([*_aligned(lines), ", ".join(counts)])


def best(points: Sequence[PointRecord], objective: str) -> str | None:
    """A sentence about the point with the highest objective, None if no point has a number."""
    rows = [row for row in rows_of(points) if isinstance(row.get(objective), int | float)]
    if not rows:
        return None
    row = max(rows, key=lambda row: row[objective])
    shown = " ".join(f"{k}={_short(row[k])}" for k in _shown(points) if row[k] is not None)
    return f"highest {objective} {row[objective]:.3f}: {shown} ({row['directory']})"


def _settings(point: PointRecord) -> Row:
    """Choices and values by dotted key; a component's choice says what its `name` is."""
    named = {key: value for key, value in flat(point.config) if not key.endswith(".name")}
    groups = {key: value for key, value in point.choices.items() if key not in named}
    return {**groups, **named}


def _varied(points: Sequence[PointRecord]) -> list[str]:
    """Keys whose values differ between points, or that some points do not have.

    Those that the user gave come first.
    """
    settings = [_settings(point) for point in points]
    every = dict.fromkeys(key for row in settings for key in row)
    keys = [*(key for key in _given(points) if key in every), *every]
    differing = (key for key in keys if len({_text(row, key) for row in settings}) > 1)
    return list(dict.fromkeys(differing))


def _given(points: Sequence[PointRecord]) -> dict[str, None]:
    """The keys of the command's words, in their order."""
    words = (word for point in points for word in point.overrides)
    return dict.fromkeys(word.partition("=")[0].lstrip("+~") for word in words)


def _implied(key: str, points: Sequence[PointRecord], settings: Sequence[Row]) -> bool:
    """Whether a value follows from the choice of its option or of the experiment.

    A value that the user gave does not.
    """
    given = _given(points)
    for group in {"experiment", key.partition(".")[0]} - {key}:
        pairs = {(_text(row, group), _text(row, key)) for row in settings}
        groups = {choice for choice, _ in pairs}
        if key not in given and 1 < len(groups) == len(pairs):
            return True
    return False


def _shown(points: Sequence[PointRecord]) -> list[str]:
    """The settings that the terminal shows: those that differ for a reason of their own."""
    settings = [_settings(point) for point in points]
    return [key for key in _varied(points) if not _implied(key, points, settings)]


def _text(row: Row, key: str) -> str:
    return json.dumps(row[key], sort_keys=True, default=str) if key in row else ""


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _csv(file: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    with file.open("w", newline="", encoding="utf-8", errors="backslashreplace") as out:
        writer = csv.DictWriter(out, columns, restval="")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)


def _parquet(file: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    import pyarrow
    from pyarrow import parquet

    values = {name: _column([_cell(row.get(name)) for row in rows]) for name in columns}
    parquet.write_table(pyarrow.table(values), file)


def _column(values: Sequence[Any]) -> list[Any]:
    """The values of a column in one type, as Parquet wants: as they are, as floats or as text."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) <= 1:
        return list(values)
    return [None if value is None else str(value) for value in values]


def _short(value: Any) -> str:
    text = "" if value is None else str(_cell(value))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _aligned(lines: Iterable[Sequence[str]]) -> list[str]:
    rows = list(lines)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in rows
    ]
