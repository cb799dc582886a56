"""The contract of a tracker, which logs every run that ends, alone or as a point of a sweep."""

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
from specframe.sweep.extras import is_installed
from specframe.sweep.point import OK, TRACKER_ERRORS, PointRecord, flat, plain_config
from specframe.sweep.point_numbers import numbers_in


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run that ended, as a tracker logs it."""

    name: str  # of its folder
    sweep: str | None  # the name of the sweep's folder, None for a run alone
    directory: Path
    status: str  # ok, skipped or failed
    config: dict[str, str | int | float | bool]  # choices and values by dotted key
    numbers: dict[str, float]  # finite ones, by the names of the sweep's table


class Tracker(Callback):
    """A callback of Hydra that logs runs.

    When one fails, the command ends with code 1, but neither the run nor the sweep is ended by it.
    """

    word: ClassVar[str]  # as in tracker=word
    package: ClassVar[str]  # what it imports; specframe does not depend on it

    def __init__(self) -> None:
        """Raises MissingResource, before any work, if the package is not installed."""
        if not is_installed(self.package):
            raise MissingResource(
                f"tracker={self.word} needs a package: pip install {self.package}"
            )

    @abstractmethod
    def log(self, run: TrackedRun) -> None:
        """Log a run that ended. Whatever this raises is reported, and fails the command."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Called by Hydra, in the process that ran the job."""
        directory = Path(config.hydra.runtime.output_dir)
        point = PointRecord.read(directory)
        marker = directory / f".{self.word}"
        if point is not None and point.reused and marker.exists():
            return  # it was logged when the point was finished
        errors = directory / TRACKER_ERRORS
        try:
            self.log(_run(config, directory, OK if point is None else point.status))
        except Exception:
            errors.write_text(traceback.format_exc(), encoding="utf-8")
            raise  # Hydra turns this into a warning, the command line turns that into an error
        errors.unlink(missing_ok=True)
        marker.touch()


def _run(config: DictConfig, directory: Path, status: str) -> TrackedRun:
    chosen: Any = OmegaConf.to_container(config.hydra.runtime.choices)
    choices = {key: value for key, value in chosen.items() if value is not None and "/" not in key}
    values = {**choices, **dict(flat(plain_config(config)))}
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
