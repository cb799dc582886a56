"""Runs one point of a sweep: none ends the others, and each leaves a record in its folder."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock
from omegaconf import DictConfig

from specframe.errors import ConfigError, IncompatibleComponents, NoHead, describe_error
from specframe.storage.system_errors import system_sentence
from specframe.sweep import resume
from specframe.sweep.point import FAILED, OBJECTIVE, OK, SKIPPED, PlannedPoint, PointRecord
from specframe.sweep.point_numbers import numbers_in

_ANSWERS = ("rows.jsonl", "generations.jsonl")  # files of a run with a line for each prompt


@dataclass(frozen=True, kw_only=True)
class Sweeper:
    """What Hydra's sweeper wants of a point."""

    optimises: bool  # it learns from numbers and failures (Optuna), so errors are raised to it
    objective: str  # the number that such a sweeper maximises

    @classmethod
    def of(cls, config: DictConfig, *, objective: str) -> Sweeper:
        """Read it from `hydra.sweeper`."""
        basic = str(config.get("_target_")).endswith(".BasicSweeper")
        return cls(optimises=not basic, objective=objective)


def check_direction(sweeper: DictConfig, objective: str) -> None:
    """Raises ConfigError for a sweeper that would look for the worst."""
    if "direction" in sweeper and str(sweeper.direction).rpartition(".")[2] != "maximize":
        raise ConfigError(
            f"hydra.sweeper.direction={sweeper.direction}: {OBJECTIVE}={objective} is better when "
            "it is higher; use hydra/sweeper=maximise, or hydra.sweeper.direction=maximize"
        )


def run_point(work: Callable[[], None], point: PlannedPoint, sweeper: Sweeper) -> float | None:
    """Run one point unless it is finished, and record in its folder how it ended.

    Returns the objective for a sweeper that optimises, None for another. An interrupt always
    passes; other errors are raised only to a sweeper that optimises.
    """
    # Two points of one configuration may run at once, in two processes.
    with FileLock(point.directory / ".lock"):
        record = resume.finished(point)
        taken = resume.taken(point)
        if record is not None:
            resume.adopt(record, point)
        elif taken is not None:
            _refuse(point, taken, sweeper)
            return None
        else:
            _run(work, point, sweeper)
    return _objective(point, sweeper.objective) if sweeper.optimises else None


def _run(work: Callable[[], None], point: PlannedPoint, sweeper: Sweeper) -> None:
    start = time.monotonic()
    status, reason = OK, ""
    error: Exception | None = None
    trace = point.directory / "traceback.txt"
    trace.unlink(missing_ok=True)
    try:
        work()
    except (IncompatibleComponents, NoHead) as exc:
        status, reason, error = SKIPPED, " ".join(str(exc).split()), exc
    except ConfigError as exc:  # a mistake in a value, unlike words that do not go together
        status, reason, error = FAILED, " ".join(str(exc).split()), exc
    except SystemExit as exc:
        if exc.code:  # a task's verdict, such as certify's
            status, reason = FAILED, f"exit code {exc.code}{_first_error(point.directory)}"
            error = RuntimeError(reason)
    except Exception as exc:
        sentence = system_sentence(exc)
        status, reason, error = FAILED, sentence or describe_error(exc), exc
        if sentence is None:
            trace.write_text(traceback.format_exc(), encoding="utf-8")
    point.ended(status, reason, seconds=round(time.monotonic() - start, 3)).write()
    if error is not None and sweeper.optimises:
        raise error


def _refuse(point: PlannedPoint, taken: str, sweeper: Sweeper) -> None:
    """Record that a point failed since its folder is another's, in a folder inside that one."""
    inside = point.directory / f"refused-{point.config_hash}"
    inside.mkdir(exist_ok=True)
    replace(point, directory=inside).ended(FAILED, taken, seconds=0.0).write()
    if sweeper.optimises:
        raise ConfigError(taken)


def _first_error(directory: Path) -> str:
    """Why the first prompt without an answer got none, if that is what failed."""
    for name in _ANSWERS:
        with suppress(OSError, ValueError), (directory / name).open(encoding="utf-8") as lines:
            for line in lines:
                if error := json.loads(line).get("error"):
                    return f": {' '.join(str(error).split())}"
    return ""


def _objective(point: PlannedPoint, name: str) -> float:
    """The number that the sweeper maximises. Raises ConfigError if the task has no such number."""
    record = PointRecord.read(point.directory)
    numbers = numbers_in(point.directory) if record is not None else {}
    value = numbers.get(name)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    known = [key for key in ("speedup", "acceptance_length", "tokens_per_s") if numbers.get(key)]
    raise ConfigError(
        f"{OBJECTIVE}={name}: this point of task={point.choices.get('task')} has no such number; "
        f"it has {', '.join(known) or 'none'}, and speedup is measured by task=benchmark"
    )
