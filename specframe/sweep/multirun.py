"""Points of a multirun: none ends the others, what is finished is not done again."""

from __future__ import annotations

import importlib
import json
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from specframe.errors import ConfigError, IncompatibleComponents, describe_error
from specframe.sweep.point import FAILED, OBJECTIVE, OK, SKIPPED, Point, PointPlace
from specframe.sweep.table import numbers_of

_TARGET = ("target", "device", "runtime")  # keys that decide which target is loaded
_DRAFTER = ("experiment", "drafter")
_ANSWERS = ("rows.jsonl", "generations.jsonl")  # of a run, a line a prompt
_SWEEPERS = "hydra._internal.core_plugins.basic_sweeper"


@dataclass
class Sweep:
    """The multirun of this process. directory: its folder, once Hydra has named it. objective:
    what its sweeper maximises, if it does. code: exit code of a single run, or of what went wrong
    beside the points. undo: what ends with it."""

    directory: Path | None = None
    objective: str | None = None
    code: int = 0
    command: str = field(default_factory=lambda: uuid4().hex)
    undo: ExitStack = field(default_factory=ExitStack)


_running: ContextVar[Sweep | None] = ContextVar("sweep", default=None)


def exit_with(code: int) -> None:
    """Let the command end with this code, once Hydra's callbacks have been called."""
    sweep = _running.get()
    if sweep is not None:
        sweep.code = sweep.code or code


class Announce(Callback):
    """Hydra's callback that tells `sweeping` where the sweep's folder is."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        sweep = _running.get()
        if sweep is not None:
            sweep.directory = Path(config.hydra.sweep.dir).absolute()
            manner = Manner.of(config.hydra.sweeper, objective=str(config.get(OBJECTIVE)))
            sweep.objective = None if manner.keep else manner.objective
            sweep.undo.enter_context(_grouping())


@contextmanager
def sweeping() -> Iterator[Sweep]:
    """A multirun may run inside; its points are made in the order that keeps weights loaded."""
    sweep = Sweep()
    token = _running.set(sweep)
    try:
        with sweep.undo:
            yield sweep
    finally:
        _running.reset(token)


@contextmanager
def _grouping() -> Iterator[None]:
    """Hydra takes sweepers from packages of its own name only, so its own one is told the order.

    Looked up when the sweep starts: Hydra's search for plugins makes that class once more."""
    sweeper = importlib.import_module(_SWEEPERS).BasicSweeper
    held = sweeper.split_arguments
    sweeper.split_arguments = staticmethod(_grouped(held))
    try:
        yield
    finally:
        sweeper.split_arguments = staticmethod(held)


def _grouped(split: Callable[..., Any]) -> Callable[..., Any]:
    def grouped(overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:
        points = by_weights([point for batch in split(overrides, None) for point in batch])
        size = max_batch_size or max(len(points), 1)
        return [points[start : start + size] for start in range(0, len(points), size)]

    return grouped


def by_weights(points: Sequence[list[str]]) -> list[list[str]]:
    """Points of one target together, within it those of one drafter; else as they came."""
    ranks: dict[tuple[str, ...], int] = {}

    def rank(point: Sequence[str], keys: Sequence[str]) -> int:
        own = tuple(word for word in point if word.split("=")[0].split(".")[0].strip("+~") in keys)
        return ranks.setdefault((*keys, *own), len(ranks))

    return sorted(points, key=lambda point: (rank(point, _TARGET), rank(point, _DRAFTER)))


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How points are run. keep: swallow their exceptions, so that the sweep goes on; a sweeper
    that learns from failures (Optuna) needs them raised. objective: what such a one maximises."""

    keep: bool
    objective: str

    @classmethod
    def of(cls, sweeper: DictConfig, *, objective: str) -> Manner:
        """That of Hydra's sweeper."""
        return cls(keep=str(sweeper.get("_target_")).endswith(".BasicSweeper"), objective=objective)


def run_point(work: Callable[[], None], place: PointPlace, manner: Manner) -> float | None:
    """Runs one point unless it is finished, and records it in its folder.

    Returns the objective for a sweeper that wants it. Interrupts always pass.
    """
    # Two points of one configuration may run at once, in two processes.
    with FileLock(place.directory / ".lock"):
        held = Point.read(place.directory)
        if held is not None and held.stands_for(place):
            replace(held, reused=True, command=place.command, number=place.number).write()
        else:
            _run(work, place, manner)
    return None if manner.keep else _objective(place, manner.objective)


def finished(place: PointPlace) -> bool:
    """Whether a point needs no work."""
    held = Point.read(place.directory)
    return held is not None and held.stands_for(place)


def _run(work: Callable[[], None], place: PointPlace, manner: Manner) -> None:
    start = time.monotonic()
    status, reason = OK, ""
    error: Exception | None = None
    trace = place.directory / "traceback.txt"
    trace.unlink(missing_ok=True)
    try:
        work()
    except (ConfigError, IncompatibleComponents) as exc:
        status, reason, error = SKIPPED, " ".join(str(exc).split()), exc
    except SystemExit as exc:
        if exc.code:  # a task's verdict, such as certify's
            status, reason = FAILED, f"exit code {exc.code}{_first_error(place.directory)}"
            error = RuntimeError(reason)
    except Exception as exc:
        status, reason, error = FAILED, describe_error(exc), exc
        trace.write_text(traceback.format_exc(), encoding="utf-8")
    place.ended(status, reason, seconds=round(time.monotonic() - start, 3)).write()
    if error is not None and not manner.keep:
        raise error


def _first_error(directory: Path) -> str:
    """Why the first prompt that could not be answered was not, if that is what failed."""
    for name in _ANSWERS:
        with suppress(OSError, ValueError), (directory / name).open(encoding="utf-8") as lines:
            for line in lines:
                if error := json.loads(line).get("error"):
                    return f": {' '.join(str(error).split())}"
    return ""


def _objective(place: PointPlace, name: str) -> float:
    """Raises ConfigError where the task has no such number: what Optuna is told is told well."""
    point = Point.read(place.directory)
    found = numbers_of(point) if point is not None else {}
    held = found.get(name)
    if isinstance(held, int | float) and math.isfinite(held):
        return float(held)
    known = [key for key in ("speedup", "acceptance_length", "tokens_per_s") if found.get(key)]
    raise ConfigError(
        f"{OBJECTIVE}={name}: this point of task={place.choices.get('task')} has no such number; "
        f"it has {', '.join(known) or 'none'}, and speedup is measured by task=benchmark"
    )
