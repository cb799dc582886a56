"""The command line: composes the words, runs the job and turns a user's mistake into one line.

`Job` is a class of this module so that launchers in other processes can pickle it.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from specframe import multirun
from specframe.catalogue import CONFIG_NAME, conf_dir, hydra_version_args
from specframe.composite import addable
from specframe.diagnose import COMPOSITION_ERRORS, explain, first_problem, repeated
from specframe.errors import ConfigError, IncompatibleComponents, MissingResource
from specframe.keys import check
from specframe.plugins import bootstrap

USER_ERROR, FAILURE, INTERRUPTED, BROKEN_PIPE = 2, 1, 130, 141
USER_ERRORS = (ConfigError, IncompatibleComponents, MissingResource, FileNotFoundError)
FULL_ERROR = "HYDRA_FULL_ERROR"
# Hydra's flags that take a value; all others stand alone.
VALUE_FLAGS = (
    *("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn"),
    *("--config-dir", "-cd", "--info", "-i", "--experimental-rerun"),
)


@dataclass(frozen=True)
class Job:
    """What Hydra calls for each point. ledger: file that collects how the points ended."""

    ledger: Path
    full_error: bool

    def __call__(self, cfg: DictConfig) -> None:
        """Runs one composed config."""
        bootstrap()  # a launcher's worker process has not been through `main`
        settings = HydraConfig.get()
        directory = Path(settings.runtime.output_dir)
        if settings.mode != RunMode.MULTIRUN:
            self._single(cfg, directory)
            return
        overrides = list(settings.overrides.task)
        sys.stderr.write(f"specframe: point {settings.job.num}: {' '.join(overrides)}\n")
        multirun.run_point(
            lambda: self._run(cfg, directory),
            overrides=overrides,
            directory=directory,
            ledger=self.ledger,
            keep=settings.sweeper.get("_target_", "").endswith(".BasicSweeper"),
        )

    def _single(self, cfg: DictConfig, directory: Path) -> None:
        try:
            self._run(cfg, directory)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"what was finished is in {directory}") from None
        except BrokenPipeError:
            raise SystemExit(BROKEN_PIPE) from None
        except Exception as exc:
            if self.full_error:
                raise
            # An exit goes through Hydra in silence; an exception would be announced by it first.
            if isinstance(exc, (*USER_ERRORS, *COMPOSITION_ERRORS)):
                raise SystemExit(_say(_one_line(exc))) from None
            traceback.print_exc()
            raise SystemExit(FAILURE) from None

    def _run(self, cfg: DictConfig, directory: Path) -> None:
        settings = HydraConfig.get()
        if settings.job.config_name == CONFIG_NAME:
            loader = GlobalHydra.instance().config_loader()
            words = list(settings.overrides.task)
            check(cfg, choices=dict(settings.runtime.choices), words=words, loader=loader)
        from specframe import build  # torch comes in here, and only what this config uses

        build.run(cfg, output_dir=directory)


def main() -> None:
    """Entry point of `python -m specframe` and of the script; always ends by SystemExit.

    Codes: 1 a failure, or a point of a sweep that is not ok; 2 a user's mistake; 130 Ctrl-C.
    """
    full_error = os.environ.get(FULL_ERROR) == "1"
    with tempfile.TemporaryDirectory(prefix="specframe-") as scratch, _quiet(), _flags_first():
        job = Job(ledger=Path(scratch) / "points.jsonl", full_error=full_error)
        try:
            code = _compose_and_run(job)
            code = _end(job, code)
            sys.stdout.flush()
        except KeyboardInterrupt as exc:
            _end(job, INTERRUPTED)
            code = _say(f"interrupted; {exc}".rstrip("; "), INTERRUPTED, kind="")
        except BrokenPipeError:
            # The reader (head, less) has gone; Python would complain again while it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = BROKEN_PIPE
    raise SystemExit(code)


def _compose_and_run(job: Job) -> int:
    _, words = _split(sys.argv[1:])
    try:
        bootstrap()
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
        sweep = not {"-m", "--multirun"}.isdisjoint(sys.argv)
        return _say(explain(exc, words, multirun=sweep, config_dirs=_config_dirs()))
    return 0


def _end(job: Job, code: int) -> int:
    """The table after a sweep; a point that is not ok makes the exit code 1."""
    points = multirun.finished(job.ledger)
    if not points:
        return code
    print(multirun.summary(points))
    return code or int(any(point.status != multirun.OK for point in points))


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
    sys.argv = [held[0], *flags, *addable(words)]
    try:
        yield
    finally:
        sys.argv = held


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
