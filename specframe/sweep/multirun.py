"""The command of this process: its folder, which is its own, and how the command ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from specframe.errors import ConfigError
from specframe.storage.folder_lock import FolderLock
from specframe.storage.run_folder import RunFolder
from specframe.sweep.order import points_by_weights
from specframe.sweep.point import OBJECTIVE, plain_config
from specframe.sweep.run_point import Sweeper


@dataclass
class Sweep:
    """A multirun, or a single run, from the command's start to its end."""

    directory: Path | None = None  # the sweep's folder once Hydra has named it; None: a single run
    objective: str | None = None  # the number that the sweeper maximises, if it optimises
    folder: RunFolder | None = None  # of a single run; None: a sweep, or a child of a run
    code: int = 0  # exit code of a single run, or of what failed beside the points
    command: str = field(default_factory=lambda: uuid4().hex)  # marks the points of this command
    num_points: int | None = None  # of the sweep, where that is known
    num_ended: int = 0  # points that this process has run
    seconds: float = 0.0  # that those took
    undo: ExitStack = field(default_factory=ExitStack)  # is closed when the command ends


_running: ContextVar[Sweep | None] = ContextVar("sweep", default=None)


@contextmanager
def sweeping() -> Iterator[Sweep]:
    """A command runs inside, and what it learns about its sweep is in the record that this gives.

    The points of a multirun are run in the order that keeps weights loaded.
    """
    sweep = Sweep()
    token = _running.set(sweep)
    try:
        with sweep.undo:
            yield sweep
    finally:
        _running.reset(token)


def _trials(config: DictConfig) -> int | None:
    """The number of points of a sweeper that optimises, which is told it; None for another."""
    trials = config.hydra.sweeper.get("n_trials")
    return trials if isinstance(trials, int) else None


def exit_with(code: int) -> bool:
    """Let the command end with this code, once Hydra's callbacks have been called.

    Returns False in a process that runs no command, as a launcher's worker.
    """
    sweep = _running.get()
    if sweep is not None:
        sweep.code = sweep.code or code
    return sweep is not None


def place_of(number: int) -> str:
    """Which point of how many, from 1 on, and about how long the rest takes: `2 of 6, ...`."""
    sweep = _running.get()
    if sweep is None or sweep.num_points is None:
        return str(number + 1)
    place = f"{number + 1} of {sweep.num_points}"
    if not sweep.num_ended:
        return place
    left = sweep.seconds / sweep.num_ended * (sweep.num_points - number)
    return f"{place}, about {_duration(left)} left"


def point_ended(seconds: float) -> None:
    """Take down how long a point took, for the time left; one that was reused is none."""
    sweep = _running.get()
    if sweep is not None:
        sweep.num_ended += 1
        sweep.seconds += seconds


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def run_folder() -> RunFolder | None:
    """The folder of the single run which is under way; None where somebody else looks after it."""
    sweep = _running.get()
    return None if sweep is None else sweep.folder


class CommandStart(Callback):
    """Hydra's callback that takes the folder of a run or of a sweep before anything is written.

    Hydra only warns of a callback's exceptions, so a refusal is the code of a SystemExit.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra when it has composed a single run."""
        sweep = _running.get()
        # Lightning starts the same command again for each further device.
        if sweep is None or int(os.environ.get("LOCAL_RANK") or 0) > 0:
            return
        try:
            path = _place(config, "hydra.run.dir")
            folder = RunFolder(path, config=plain_config(config), named_by="hydra.run.dir")
        except ConfigError as error:
            raise SystemExit(error) from None
        sweep.folder = sweep.undo.enter_context(folder)
        if folder.is_complete:
            text = "is complete, with this very configuration; nothing is done again"
            sys.stderr.write(f"specframe: the run in {os.path.relpath(path)} {text}\n")
            raise SystemExit(0)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra when it has composed the configuration of the sweep itself."""
        sweep = _running.get()
        if sweep is None:
            return
        try:
            place = _place(config, "hydra.sweep.dir")
            lock = FolderLock(place, name=".sweep.lock", named_by="hydra.sweep.dir")
        except ConfigError as error:
            raise SystemExit(error) from None
        sweep.undo.enter_context(lock)
        sweep.directory = place
        sweeper = Sweeper.of(config.hydra.sweeper, objective=str(config.get(OBJECTIVE)))
        sweep.objective = sweeper.objective if sweeper.optimises else None
        sweep.num_points = _trials(config)

        def counted(count: int) -> None:
            sweep.num_points = count

        sweep.undo.enter_context(points_by_weights(counted))


def _place(config: DictConfig, key: str) -> Path:
    """The folder that a key of Hydra's names, as Hydra will find it."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)  # the name may be made of Hydra's own values
    try:
        return Path(str(OmegaConf.select(config, key))).absolute()
    finally:
        HydraConfig.instance().cfg = before
        OmegaConf.set_readonly(config.hydra, None)
