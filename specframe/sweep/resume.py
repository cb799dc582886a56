"""How a sweep goes on where it stopped: a point that is finished is not run again."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specframe.sweep.point import OK, PlannedPoint, PointRecord, flat

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


def taken(point: PlannedPoint) -> str | None:
    """Why a point cannot use its folder: the results of another configuration are there.

    That happens where hydra.sweep.subdir names folders by something else than the configuration.
    """
    record = PointRecord.read(point.directory)
    if record is None or record.status != OK or record.config_hash == point.config_hash:
        return None
    there, here = dict(flat(record.config)), dict(flat(point.config))
    changed = (key for key in [*here, *there] if _text(there, key) != _text(here, key))
    key = next(changed, "seed")
    return (
        f"{_FOLDER}={os.path.relpath(point.directory.parent)}: the point in "
        f"{point.directory.name} has {key}={_text(there, key)}, this one has {_text(here, key)}; "
        "give another folder, or leave hydra.sweep.subdir out"
    )


def _text(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key], default=str) if key in values else "no such key"


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
