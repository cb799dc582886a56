"""The command line: composes the words, runs the job and turns a user's mistake into one line.

`Command` is a class of this module so that launchers in other processes can pickle it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from specframe.compose.catalogue import CONFIG_NAME, conf_dir, hydra_version_args
from specframe.compose.explain import COMPOSITION_ERRORS, explain, first_problem, repeated
from specframe.compose.key_check import check_keys, check_unambiguous
from specframe.compose.nested_options import with_nested_keys_added
from specframe.errors import ConfigError, IncompatibleComponents, MissingResource
from specframe.plugins import bootstrap
from specframe.sweep import multirun
from specframe.sweep import table as gather
from specframe.sweep.extras import check_installed, check_sweeper, go_on
from specframe.sweep.point import OBJECTIVE, OK, TRACKER_ERRORS, PointPlace, points_of

USER_ERROR, FAILURE, INTERRUPTED, BROKEN_PIPE = 2, 1, 130, 141
USER_ERRORS = (ConfigError, IncompatibleComponents, MissingResource, FileNotFoundError)
FULL_ERROR = "HYDRA_FULL_ERROR"
_CALLBACK_RAISED = r"Callback \w+\.\w+ raised "
# Hydra's flags that take a value; all others stand alone.
VALUE_FLAGS = (
    *("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn"),
    *("--config-dir", "-cd", "--info", "-i", "--experimental-rerun"),
)


@dataclass(frozen=True)
class Command:
    """What Hydra calls for each point. command: of the sweep, so that its points are known."""

    command: str
    full_error: bool

    def __call__(self, cfg: DictConfig) -> float | None:
        """Runs one composed config; the objective, for a sweeper that optimises."""
        bootstrap()  # a launcher's worker process has not been through `main`
        settings = HydraConfig.get()
        directory = Path(settings.runtime.output_dir)
        if settings.mode != RunMode.MULTIRUN:
            multirun.exit_with(self._single(cfg, directory))
            return None
        place = PointPlace.of(cfg, command=self.command)
        manner = multirun.Manner.of(settings.sweeper, objective=str(cfg.get(OBJECTIVE)))
        note = "finished before: " if multirun.finished(place) else ""
        where = os.path.relpath(directory)
        told = f"point {settings.job.num}: {note}{' '.join(place.overrides)}"
        sys.stderr.write(f"specframe: {told} -> {where}\n")

        def work() -> None:
            check_sweeper(settings.sweeper, manner.objective)
            self._run(cfg, directory)

        return multirun.run_point(work, place, manner)

    def _single(self, cfg: DictConfig, directory: Path) -> int:
        """The exit code: were it raised, Hydra would not tell its callbacks that the run ended."""
        try:
            self._run(cfg, directory)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"what was finished is in {directory}") from None
        except BrokenPipeError:
            return BROKEN_PIPE
        except SystemExit as exc:
            return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        except Exception as exc:
            if self.full_error:
                raise
            if isinstance(exc, (*USER_ERRORS, *COMPOSITION_ERRORS)):
                return _say(_one_line(exc))
            traceback.print_exc()
            return FAILURE
        return 0

    def _run(self, cfg: DictConfig, directory: Path) -> None:
        settings = HydraConfig.get()
        if settings.job.config_name == CONFIG_NAME:
            loader = GlobalHydra.instance().config_loader()
            check_keys(cfg, choices=dict(settings.runtime.choices), loader=loader)
            check_unambiguous(list(settings.overrides.task), loader)
        from specframe.compose import build

        build.run(cfg, output_dir=directory)


def main() -> None:
    """Entry point of `python -m specframe` and of the script; always ends by SystemExit.

    Codes: 1 a failure, or a point of a sweep that is not ok; 2 a user's mistake; 130 Ctrl-C.
    """
    full_error = os.environ.get(FULL_ERROR) == "1"
    given = list(sys.argv)
    with multirun.sweeping() as sweep, _heard(), _quiet(), _flags_first():
        job = Command(command=sweep.command, full_error=full_error)
        try:
            code = _compose_and_run(job)
            code = _end(sweep, code or sweep.code)
            sys.stdout.flush()
        except KeyboardInterrupt as exc:
            _end(sweep, INTERRUPTED)
            told = [text for text in (str(exc), go_on(given, sweep.directory)) if text]
            code = _say("; ".join(["interrupted", *told]), INTERRUPTED, kind="")
        except BrokenPipeError:
            # The reader (head, less) has gone; Python would complain again while it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = BROKEN_PIPE
        except Exception:  # a launcher's own, such as a worker that was killed
            if full_error or sweep.directory is None:
                raise
            traceback.print_exc()
            code = _end(sweep, FAILURE)
    raise SystemExit(code)


def _compose_and_run(job: Command) -> int:
    _, words = _split(sys.argv[1:])
    try:
        bootstrap()
        check_installed(words)
        wrong = repeated(words, _config_dirs())
        if wrong is None and any("max_batch_size" in word for word in words):
            # Hydra would compose the later batches only when the earlier have run.
            wrong = first_problem(words, multirun=True, config_dirs=_config_dirs())
        if wrong is not None:
            raise ConfigError(wrong)
        decorate = hydra.main(
            config_path=str(conf_dir()), config_name=CONFIG_NAME, **hydra_version_args(hydra.main)
        )
        decorate(job)()
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except USER_ERRORS as exc:
        if job.full_error:
            raise
        return _say(_one_line(exc))
    except (*COMPOSITION_ERRORS, ValueError) as exc:  # Hydra's own
        if job.full_error:
            raise
        if isinstance(exc.__cause__, USER_ERRORS):  # a callback's, such as a missing package
            return _say(_one_line(exc.__cause__))
        sweep = not {"-m", "--multirun"}.isdisjoint(sys.argv)
        return _say(explain(exc, words, multirun=sweep, config_dirs=_config_dirs()))
    return 0


def _end(sweep: multirun.Sweep, code: int) -> int:
    """The table after a sweep; a point that is not ok makes the exit code 1."""
    points = [] if sweep.directory is None else points_of(sweep.directory, sweep.command)
    if not points or sweep.directory is None:
        return code
    gather.write(points, sweep.directory)
    print(gather.summary(points))
    if sweep.objective is not None and (told := gather.best(points, sweep.objective)):
        print(told)
    print(f"table in {os.path.relpath(sweep.directory)}: sweep.csv, sweep.parquet")
    for point in points:
        errors = Path(point.directory) / TRACKER_ERRORS
        if errors.is_file():
            code = code or FAILURE
            sys.stderr.write(f"specframe: a tracker failed: {os.path.relpath(errors)}\n")
    return code or int(any(point.status != OK for point in points))


def _one_line(exc: BaseException) -> str:
    if isinstance(exc, FileNotFoundError) and exc.filename is not None:
        return f"no such file: {exc.filename}"
    return " ".join(str(exc).split()) or type(exc).__name__


def _say(text: str, code: int = USER_ERROR, *, kind: str = "error: ") -> int:
    sys.stderr.write(f"specframe: {kind}{text}\n")
    return code


def _config_dirs() -> list[str]:
    flags = ("--config-dir", "-cd")
    return [after for flag, after in zip(sys.argv, sys.argv[1:], strict=False) if flag in flags]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags with their values, and the words."""
    flags: list[str] = []
    words: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        is_value = before in VALUE_FLAGS and "=" not in argument
        (flags if is_value or argument.startswith("-") else words).append(argument)
    return flags, words


@contextmanager
def _flags_first() -> Iterator[None]:
    """argparse refuses words on both sides of a flag, as in `tree=chain -m seed=1,2`; and Hydra
    refuses keys of an option inside an option unless they are marked."""
    held = sys.argv
    flags, words = _split(held[1:])
    sys.argv = [held[0], *flags, *with_nested_keys_added(words)]
    try:
        yield
    finally:
        sys.argv = held


@contextmanager
def _heard() -> Iterator[None]:
    """What a callback raises is an error of the command; Hydra makes a mere warning of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_CALLBACK_RAISED)
        shown = warnings.showwarning

        def show(message: Warning | str, *rest: Any, **more: Any) -> None:
            if re.match(_CALLBACK_RAISED, str(message)):
                multirun.exit_with(FAILURE)
                _say(" ".join(str(message).split()), kind="")
            else:
                shown(message, *rest, **more)

        warnings.showwarning = show
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Hydra re-raises instead of printing, and logging does not report a closed pipe."""
    held, complain = os.environ.get(FULL_ERROR), logging.raiseExceptions
    os.environ[FULL_ERROR] = "1"
    logging.raiseExceptions = False
    try:
        yield
    finally:
        logging.raiseExceptions = complain
        if held is None:
            os.environ.pop(FULL_ERROR, None)
        else:
            os.environ[FULL_ERROR] = held
