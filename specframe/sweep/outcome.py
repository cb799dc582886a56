"""What a command prints when its sweep has ended, and the exit code that follows from it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specframe.storage.system_errors import drop_output, output_is_full, system_sentence
from specframe.sweep import table
from specframe.sweep.multirun import Sweep
from specframe.sweep.point import FAILED, TRACKER_ERRORS, points_of

BROKEN_PIPE = 141  # the exit code of a command whose reader (head, less) has gone
SYSTEM_REFUSAL = 2  # the exit code of a command whose last lines had no place
FAILURE = 1  # the exit code of a command that failed, or of a sweep with a point that failed


def end_command(sweep: Sweep, code: int) -> int:
    """Print how a sweep ended and empty standard output, once. Returns the exit code.

    Python would report an output that fails again as it closes it, so it is dropped then.
    """
    try:
        if code != BROKEN_PIPE:
            code = print_outcome(sweep, code)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        return BROKEN_PIPE
    except OSError as exc:
        sentence = system_sentence(exc)
        if sentence is None:
            raise
        if not code:
            sys.stderr.write(f"specframe: error: {sentence}\n")
        if output_is_full():
            drop_output()
        return code or SYSTEM_REFUSAL
    return code


def print_outcome(sweep: Sweep, code: int) -> int:
    """Write and print the table of a sweep; nothing happens after a single run.

    code: the exit code so far. Returns it, or 1 if it was 0 and a point or a tracker failed.
    """
    points = [] if sweep.directory is None else points_of(sweep.directory, sweep.command)
    if not points or sweep.directory is None:
        return code
    print(table.summary(points))
    if sweep.objective is not None and (sentence := table.best(points, sweep.objective)):
        print(sentence)
    table.write(points, sweep.directory)  # behind what is printed, for the disk may be full
    print(f"table in {os.path.relpath(sweep.directory)}: sweep.csv, sweep.parquet")
    for point in points:
        errors = Path(point.directory) / TRACKER_ERRORS
        if errors.is_file():
            code = code or FAILURE
            sys.stderr.write(f"specframe: a tracker failed: {os.path.relpath(errors)}\n")
    return code or int(any(point.status == FAILED for point in points))
