"""The points of a sweep as one table: CSV, Parquet, and what a terminal shows of it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specframe.sweep.point import FAILED, OK, RESULTS, SKIPPED, Point, flat

KEY_METRICS = ("acceptance_length", "tokens_per_s", "speedup")  # shown, where there
_METHOD = "method."  # of a benchmark; its numbers go by their bare names, as task=generate's
_LONGEST = 40  # characters of a value on the terminal
Row = dict[str, Any]


def numbers_of(point: Point) -> Row:
    """Every number of a finished point by dotted name; of a benchmark those overall, and the key
    metrics of each category."""
    return numbers_in(Path(point.directory))


def numbers_in(directory: Path) -> Row:
    """Those of a run's folder; {} where its task leaves none."""
    found: Row = {}
    for name in RESULTS:
        with suppress(OSError, ValueError):  # none, or somebody took it away
            held = json.loads((directory / name).read_text(encoding="utf-8"))
            found |= _benchmark(held) if "categories" in held else _single(held)
    return found


def table(points: Sequence[Point]) -> list[Row]:
    """A row a point: status, the choices and values that differ, numbers, reason, folder, hash."""
    varied = _varied(points)
    rows = []
    for point in points:
        settings = _settings(point)
        rows.append(
            {
                "status": point.status,
                **{key: settings.get(key) for key in varied},
                **(numbers_of(point) if point.status == OK else {}),
                "seconds": point.seconds,
                "reason": point.reason,
                "directory": Path(point.directory).name,
                "config_hash": point.config_hash,
            }
        )
    return rows


def write(points: Sequence[Point], sweep: Path) -> list[Path]:
    """The table as sweep.csv and sweep.parquet in the sweep's folder."""
    rows = table(points)
    # A column that only some points have stays before the reasons.
    last = ("seconds", "reason", "directory", "config_hash")
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name not in last]
    columns = [*names, *last]
    files = [sweep / "sweep.csv", sweep / "sweep.parquet"]
    for file, make in zip(files, (_csv, _parquet), strict=True):
        partial = file.with_name(f".{file.name}.partial")
        make(partial, rows, columns)
        os.replace(partial, file)
    return files


def summary(points: Sequence[Point]) -> str:
    """One line a point: status, the settings that were varied, key metrics, folder, reason."""
    rows = table(points)
    varied = _told(points)
    metrics = [key for key in KEY_METRICS if any(row.get(key) is not None for row in rows)]
    lines = [["status", *varied, *metrics, "folder", ""]] if rows else []
    for row, point in zip(rows, points, strict=True):
        told = [_short(row.get(key)) for key in varied]
        held = ["" if row.get(key) is None else f"{row[key]:.2f}" for key in metrics]
        where = os.path.relpath(point.directory)
        reason = point.reason or ("finished before" if point.reused else "")
        lines.append([row["status"], *told, *held, where, reason])
    counts = [f"{sum(p.status == s for p in points)} {s}" for s in (OK, SKIPPED, FAILED)]
    return "\n".join([*_aligned(lines), ", ".join(counts)])


def best(points: Sequence[Point], objective: str) -> str | None:
    """One sentence on the point with the highest objective, if any has one."""
    rows = [row for row in table(points) if isinstance(row.get(objective), int | float)]
    if not rows:
        return None
    row = max(rows, key=lambda one: one[objective])
    told = " ".join(f"{k}={_short(row[k])}" for k in _told(points) if row[k] is not None)
    return f"highest {objective} {row[objective]:.3f}: {told} ({row['directory']})"


def _settings(point: Point) -> Row:
    """Choices and values by dotted key; a component's `name` is said by its choice."""
    named = {key: value for key, value in flat(point.config) if not key.endswith(".name")}
    groups = {key: value for key, value in point.choices.items() if key not in named}
    return {**groups, **named}


def _varied(points: Sequence[Point]) -> list[str]:
    """Keys whose values are not the same everywhere, a key that is missing somewhere included;
    those that the user gave come first."""
    settings = [_settings(point) for point in points]
    every = dict.fromkeys(key for one in settings for key in one)
    keys = [*(key for key in _given(points) if key in every), *every]
    differing = (key for key in keys if len({_text(one, key) for one in settings}) > 1)
    return list(dict.fromkeys(differing))


def _given(points: Sequence[Point]) -> dict[str, None]:
    """Keys of the command's words, in their order."""
    words = (word for point in points for word in point.overrides)
    return dict.fromkeys(word.partition("=")[0].lstrip("+~") for word in words)


def _implied(key: str, points: Sequence[Point], settings: Sequence[Row]) -> bool:
    """Whether a value follows from the choice of its own option or of the experiment; never one
    that the user gave."""
    given = _given(points)
    for group in {"experiment", key.partition(".")[0]} - {key}:
        pairs = {(_text(one, group), _text(one, key)) for one in settings}
        groups = {choice for choice, _ in pairs}
        if key not in given and 1 < len(groups) == len(pairs):
            return True
    return False


def _told(points: Sequence[Point]) -> list[str]:
    """What the terminal shows of the settings."""
    settings = [_settings(point) for point in points]
    return [key for key in _varied(points) if not _implied(key, points, settings)]


def _text(row: Row, key: str) -> str:
    return json.dumps(row[key], sort_keys=True, default=str) if key in row else ""


def _benchmark(held: Row) -> Row:
    overall = dict(_spread(held["overall"] or {}))
    found = {key.removeprefix(_METHOD): value for key, value in overall.items()}
    for category, numbers in held["categories"].items():
        own = {key.removeprefix(_METHOD): value for key, value in _spread(numbers).items()}
        kept = {key: own[key] for key in KEY_METRICS if key in own}
        found |= {f"category.{category}.{key}": value for key, value in kept.items()}
    rest = {key: held.get(key) for key in ("num_errors", "peak_memory_bytes")}
    return found | {key: value for key, value in rest.items() if value is not None}


def _single(held: Row) -> Row:
    """Of task=replay the one row; several budgets in one point have a table of their own."""
    if "recorded" not in held:
        return dict(_spread(held))
    return dict(_spread(held["rows"][0])) if len(held["rows"]) == 1 else {}


def _spread(numbers: Row, above: str = "") -> Row:
    """Numbers, words and truths under dotted names; ends of an interval as low and high."""
    found: Row = {}
    for key, held in flat(numbers):
        name = f"{above}{key}"
        if isinstance(held, list) and held and all(isinstance(one, dict) for one in held):
            for one in held:
                rest = {k: v for k, v in one.items() if k != "depth"}
                found |= _spread(rest, f"{name}.{one.get('depth', held.index(one))}.")
        elif isinstance(held, list) and "intervals." in name:
            found |= {f"{name}.{end}": x for end, x in zip(("low", "high"), held, strict=False)}
        else:
            found[name] = held
    return found


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

    held = {name: _column([_cell(row.get(name)) for row in rows]) for name in columns}
    parquet.write_table(pyarrow.table(held), file)


def _column(values: Sequence[Any]) -> list[Any]:
    """One type a column: truths, whole numbers, numbers or else text."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int, float}:
        return [None if one is None else float(one) for one in values]
    if len(kinds) <= 1:
        return list(values)
    return [None if one is None else str(one) for one in values]


def _short(value: Any) -> str:
    text = "" if value is None else str(_cell(value))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _aligned(lines: Iterable[Sequence[str]]) -> list[str]:
    held = list(lines)
    widths = [max(map(len, column)) for column in zip(*held, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in held
    ]
