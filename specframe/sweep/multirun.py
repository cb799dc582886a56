"""The multirun of this process: where its folder is, what it maximises, how the command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from specframe.sweep.order import points_by_weights
from specframe.sweep.point import OBJECTIVE
from specframe.sweep.run_point import Sweeper


@dataclass
class Sweep:
    """A multirun, or a single run, from the command's start to its end."""

    directory: Path | None = None  # the sweep's folder once Hydra has named it; None: a single run
    objective: str | None = None  # the number that the sweeper maximises, if it optimises
    code: int = 0  # exit code of a single run, or of what failed beside the points
    command: str = field(default_factory=lambda: uuid4().hex)  # marks the points of this command
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


def exit_with(code: int) -> None:
    """Let the command end with this code, once Hydra's callbacks have been called."""
    sweep = _running.get()
    if sweep is not None:
        sweep.code = sweep.code or code


class SweepStart(Callback):
    """Hydra's callback that tells the running command about the sweep which starts."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra when it has composed the configuration of the sweep itself."""
        sweep = _running.get()
        if sweep is not None:
            sweep.directory = Path(config.hydra.sweep.dir).absolute()
            sweeper = Sweeper.of(config.hydra.sweeper, objective=str(config.get(OBJECTIVE)))
            sweep.objective = sweeper.objective if sweeper.optimises else None
            sweep.undo.enter_context(points_by_weights())
