"""How a sweep goes on where it stopped: a point that is finished is not run again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specframe.sweep.point import OK, PlannedPoint, PointRecord

_FOLDER = "hydra.sweep.dir"


def finished(point: PlannedPoint) -> PointRecord | None:
    """The record of an earlier command that finished this point, None if it has to be run.

    A point is finished if it ended well, with this very configuration, and if the files with its
    numbers are still there.
    """
    record = PointRecord.read(point.directory)
    if record is None or record.status != OK or record.config_hash != point.config_hash:
        return None
    there = all((point.directory / name).is_file() for name in record.results)
    return record if there else None


def adopt(record: PointRecord, point: PlannedPoint) -> None:
    """Make the record of a finished point one of the command that asked for it again."""
    replace(record, reused=True, command=point.command, number=point.number).write()


def resume_command(command: Sequence[str], sweep: Path | None) -> str:
    """The command that goes on with a sweep, given the one that stopped; "" without a sweep."""
    if sweep is None:
        return ""
    own = Path(command[0]).name == "__main__.py"
    words = [word for word in command[1:] if not word.startswith(f"{_FOLDER}=")]
    program = ["python", "-m", "specframe"] if own else [Path(command[0]).name]
    return "go on with: " + shlex.join([*program, *words, f"{_FOLDER}={os.path.relpath(sweep)}"])
