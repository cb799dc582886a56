"""The contract of a tracker: it is told of every run that ended, alone or as a point of a sweep."""

from __future__ import annotations

import math
import traceback
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from specframe.errors import MissingResource
from specframe.sweep.extras import is_there
from specframe.sweep.point import OK, TRACKER_ERRORS, Point, flat, plain
from specframe.sweep.table import numbers_in


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told. name: of the run's folder; sweep: of the sweep's folder, None for a
    run alone. config: choices and values by dotted key; numbers: finite, by the names of the
    sweep's table."""

    name: str
    sweep: str | None
    directory: Path
    status: str
    config: dict[str, str | int | float | bool]
    numbers: dict[str, float]


class Tracker(Callback):
    """word: of the command line; package: what it imports; a failure of it fails the command, but
    neither the run nor the sweep."""

    word: ClassVar[str]
    package: ClassVar[str]

    def __init__(self) -> None:
        """Raises MissingResource, before any work, where the package is not there."""
        if not is_there(self.package):
            raise MissingResource(
                f"tracker={self.word} needs a package: pip install {self.package}"
            )

    @abstractmethod
    def log(self, run: TrackedRun) -> None:
        """Hand over a run that ended."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Called by Hydra, in the process that ran the job."""
        directory = Path(config.hydra.runtime.output_dir)
        point = Point.read(directory)
        marker = directory / f".{self.word}"
        if point is not None and point.reused and marker.exists():
            return  # it was told when the point was finished
        errors = directory / TRACKER_ERRORS
        try:
            self.log(_run(config, directory, OK if point is None else point.status))
        except Exception:
            errors.write_text(traceback.format_exc(), encoding="utf-8")
            raise  # Hydra makes a warning of it, the command line an error
        errors.unlink(missing_ok=True)
        marker.touch()


def _run(config: DictConfig, directory: Path, status: str) -> TrackedRun:
    chosen: Any = OmegaConf.to_container(config.hydra.runtime.choices)
    choices = {key: value for key, value in chosen.items() if value is not None and "/" not in key}
    values = {**choices, **dict(flat(plain(config)))}
    swept = config.hydra.mode == RunMode.MULTIRUN
    return TrackedRun(
        name=directory.name,
        sweep=directory.parent.name if swept else None,
        directory=directory,
        status=status,
        config={key: _plain(value) for key, value in values.items()},
        numbers={
            key: float(value)
            for key, value in numbers_in(directory).items()
            if isinstance(value, int | float) and math.isfinite(value)
        },
    )


def _plain(value: Any) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else str(value)
