"""Points of a multirun: each leaves its status, none ends the others, a table at the end."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specframe.errors import ConfigError, IncompatibleComponents
from specframe.registry import describe

OK, SKIPPED, FAILED = "ok", "skipped", "failed"


@dataclass(frozen=True, kw_only=True)
class Point:
    """How one point ended."""

    status: str
    reason: str
    overrides: list[str]
    directory: str


def run_point(
    work: Callable[[], None], *, overrides: Sequence[str], directory: Path, ledger: Path, keep: bool
) -> None:
    """Runs one point and records it in `directory`/status.json and in the ledger.

    keep: swallow its exception, so that the sweep goes on; a sweeper that learns from failures
    (Optuna) needs it raised. Interrupts always pass.
    """
    status, reason = OK, ""
    error: Exception | None = None
    try:
        work()
    except (ConfigError, IncompatibleComponents) as exc:
        status, reason, error = SKIPPED, " ".join(str(exc).split()), exc
    except SystemExit as exc:
        if exc.code:  # a task's verdict, such as certify's
            status, reason = FAILED, f"exit code {exc.code}"
    except Exception as exc:
        status, reason, error = FAILED, describe(exc), exc
        (directory / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
    point = Point(status=status, reason=reason, overrides=list(overrides), directory=str(directory))
    _record(point, ledger)
    if error is not None and not keep:
        raise error


def _record(point: Point, ledger: Path) -> None:
    """Written whole or not at all; the ledger grows by one line, from any process."""
    target = Path(point.directory) / "status.json"
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(point), indent=1) + "\n", encoding="utf-8")
    os.replace(partial, target)
    with ledger.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(point)) + "\n")


def finished(ledger: Path) -> list[Point]:
    """The points recorded so far, in the order in which they ended."""
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.is_file() else []
    return [Point(**json.loads(line)) for line in lines]


def summary(points: Sequence[Point]) -> str:
    """One line a point: status, the words that differ between the points, reason, folder."""
    shared = set.intersection(*(set(point.overrides) for point in points)) if points else set()
    rows = []
    for point in points:
        words = " ".join(word for word in point.overrides if word not in shared)
        rows.append((point.status, words, os.path.relpath(point.directory), point.reason))
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[3]]).rstrip())
    counts = [f"{sum(p.status == s for p in points)} {s}" for s in (OK, SKIPPED, FAILED)]
    return "\n".join([*lines, ", ".join(counts)])
