"""What a command prints when its sweep has ended, and the exit code that follows from it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specframe.sweep import table
from specframe.sweep.multirun import Sweep
from specframe.sweep.point import OK, TRACKER_ERRORS, points_of

FAILURE = 1  # the exit code of a command that failed, or of a sweep with a point that is not ok


def print_outcome(sweep: Sweep, code: int) -> int:
    """Write and print the table of a sweep; nothing happens after a single run.

    code: the exit code so far. Returns it, or 1 if it was 0 and a point or a tracker failed.
    """
    points = [] if sweep.directory is None else points_of(sweep.directory, sweep.command)
    if not points or sweep.directory is None:
        return code
    table.write(points, sweep.directory)
    print(table.summary(points))
    if sweep.objective is not None and (sentence := table.best(points, sweep.objective)):
        print(sentence)
    print(f"table in {os.path.relpath(sweep.directory)}: sweep.csv, sweep.parquet")
    for point in points:
        errors = Path(point.directory) / TRACKER_ERRORS
        if errors.is_file():
            code = code or FAILURE
            sys.stderr.write(f"specframe: a tracker failed: {os.path.relpath(errors)}\n")
    return code or int(any(point.status != OK for point in points))
