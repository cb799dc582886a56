"""The command line: composes the words, runs the task and turns a user's mistake into one line."""

from __future__ import annotations

import os
import sys
import time
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

from specframe import __version__
from specframe.compose.catalogue import CONFIG_NAME, conf_dir, hydra_version_args
from specframe.compose.data_sheets import COMMANDS, answer
from specframe.compose.explain import COMPOSITION_ERRORS, explain, first_problem, repeated
from specframe.compose.hydra_errors import FULL_ERROR, callback_failures, errors_raised
from specframe.compose.key_check import check_keys, check_unambiguous
from specframe.compose.literal_words import check_encodable, for_hydra
from specframe.errors import ConfigError, IncompatibleComponents, MissingResource
from specframe.plugins import bootstrap
from specframe.storage.run_folder import RunFolder
from specframe.storage.system_errors import standard_streams, system_sentence
from specframe.sweep.extras import check_installed
from specframe.sweep.multirun import exit_with, place_of, point_ended, run_folder, sweeping
from specframe.sweep.outcome import BROKEN_PIPE, FAILURE, end_command
from specframe.sweep.point import OBJECTIVE, PlannedPoint
from specframe.sweep.resume import finished, resume_command
from specframe.sweep.run_point import Sweeper, check_direction, run_point

USER_ERROR, INTERRUPTED = 2, 130  # exit codes
USER_ERRORS = (ConfigError, IncompatibleComponents, MissingResource, FileNotFoundError)
# Hydra's flags that take a value; all others stand alone.
VALUE_FLAGS = (
    *("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn"),
    *("--config-dir", "-cd", "--info", "-i", "--experimental-rerun"),
)


@dataclass(frozen=True)
class HydraJob:
    """What Hydra calls with a composed configuration: once, or for each point of a sweep.

    It is a class of a module, so that launchers can pickle it for their worker processes.
    """

    command: str  # marks the points that this command asks for
    full_error: bool  # whether an error is raised as it is, with its traceback

    def __call__(self, cfg: DictConfig) -> float | None:
        """Run one configuration; returns the objective for a sweeper that optimises."""
        bootstrap()  # a launcher's worker process has not been through `main`
        settings = HydraConfig.get()
        directory = Path(settings.runtime.output_dir)
        if settings.mode != RunMode.MULTIRUN:
            exit_with(self._single(cfg, directory))
            return None
        point = PlannedPoint.of(cfg, command=self.command)
        sweeper = Sweeper.of(settings.sweeper, objective=str(cfg.get(OBJECTIVE)))
        note = "finished before: " if finished(point) else ""
        text = f"point {place_of(point.number)}: {note}{' '.join(point.overrides)}"
        sys.stderr.write(f"specframe: {text} -> {os.path.relpath(directory)}\n")

        def work() -> None:
            check_direction(settings.sweeper, sweeper.objective)
            with RunFolder(directory, config=point.config, named_by="hydra.sweep.dir") as folder:
                self._run(cfg, directory, folder)

        start = time.monotonic()
        try:
            objective = run_point(work, point, sweeper)
        except OSError as exc:  # its record cannot be written; other points may fare better
            sentence = system_sentence(exc)
            if sentence is None or sweeper.optimises or not exit_with(FAILURE):
                raise
            _say(f"point {point.number} has no record: {sentence}")
            return None
        if not note:
            point_ended(time.monotonic() - start)
        return objective

    def _single(self, cfg: DictConfig, directory: Path) -> int:
        """Run a task and return its exit code.

        An error is not raised: Hydra would then not call its callbacks for the end of the run.
        """
        try:
            self._run(cfg, directory, run_folder())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"what was finished is in {directory}") from None
        except BrokenPipeError:
            return BROKEN_PIPE
        except SystemExit as exc:
            return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        except Exception as exc:
            if self.full_error:
                raise
            sentence = _sentence(exc)
            if sentence is not None:
                return _say(sentence)
            traceback.print_exc()
            return FAILURE
        return 0

    def _run(self, cfg: DictConfig, directory: Path, folder: RunFolder | None) -> None:
        settings = HydraConfig.get()
        if settings.job.config_name == CONFIG_NAME:
            loader = GlobalHydra.instance().config_loader()
            check_keys(cfg, choices=dict(settings.runtime.choices), loader=loader)
            check_unambiguous(list(settings.overrides.task), loader)
        from specframe.compose import run_task

        run_task.run(cfg, output_dir=directory, folder=folder)


def main() -> None:
    """Entry point of `python -m specframe` and of the script; always ends by SystemExit.

    Codes: 1 a failure, or a point of a sweep that failed; 2 a user's mistake; 130 Ctrl-C.
    """
    if closed := standard_streams():
        raise SystemExit(_say(closed))
    full_error = os.environ.get(FULL_ERROR) == "1"
    given = list(sys.argv)
    with sweeping() as sweep, callback_failures(_callback_failed), errors_raised(), _flags_first():
        job = HydraJob(command=sweep.command, full_error=full_error)
        try:
            code = _compose_and_run(job)
            code = code or sweep.code
        except KeyboardInterrupt as exc:
            end_command(sweep, INTERRUPTED)
            notes = [str(exc), resume_command(given, sweep.directory)]
            text = "; ".join(["interrupted", *filter(None, notes)])
            raise SystemExit(_say(text, INTERRUPTED, kind="")) from None
        except BrokenPipeError:
            code = BROKEN_PIPE
        except Exception as exc:  # Hydra's, or a launcher's, such as a worker that was killed
            sentence = system_sentence(exc)
            if full_error or (sentence is None and sweep.directory is None):
                raise
            if sentence is None:
                traceback.print_exc()
            code = FAILURE if sentence is None else _say(sentence)
        code = end_command(sweep, code)
    raise SystemExit(code)


def _compose_and_run(job: HydraJob) -> int:
    flags, words = _split(sys.argv[1:])
    if "--version" in flags:  # Hydra would print its own
        print(f"specframe {__version__}")
        return 0
    try:
        check_encodable(words)
        bootstrap()
        check_installed(words)
        if words[:1] and words[0] in COMMANDS:
            sys.stdout.write(answer(words, _config_dirs()) + "\n")
            return 0
        wrong = repeated(words, _config_dirs())
        if wrong is None and any("max_batch_size" in word for word in words):
            # Hydra composes a later batch only when the earlier ones have run.
            wrong = first_problem(words, multirun=True, config_dirs=_config_dirs())
        if wrong is not None:
            raise ConfigError(wrong)
        decorate = hydra.main(
            config_path=str(conf_dir()), config_name=CONFIG_NAME, **hydra_version_args(hydra.main)
        )
        decorate(job)()
    except SystemExit as exc:
        reason: object = exc.code
        if isinstance(reason, ConfigError):  # a folder that is refused
            return _say(_one_line(reason))
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except USER_ERRORS as exc:
        if job.full_error:
            raise
        return _say(_one_line(exc))
    except (*COMPOSITION_ERRORS, ValueError) as exc:  # raised by Hydra
        if job.full_error:
            raise
        if isinstance(exc.__cause__, USER_ERRORS):  # a callback's, such as a missing package
            return _say(_one_line(exc.__cause__))
        sweep = not {"-m", "--multirun"}.isdisjoint(sys.argv)
        return _say(explain(exc, words, multirun=sweep, config_dirs=_config_dirs()))
    return 0


def _one_line(exc: BaseException) -> str:
    if isinstance(exc, FileNotFoundError) and exc.filename is not None:
        return f"no such file: {exc.filename}"
    return " ".join(str(exc).split()) or type(exc).__name__


def _sentence(exc: Exception) -> str | None:
    """The one line for a user's mistake or the system's refusal; None for a fault of ours."""
    if isinstance(exc, (*USER_ERRORS, *COMPOSITION_ERRORS)):
        return _one_line(exc)
    return system_sentence(exc)


def _say(text: str, code: int = USER_ERROR, *, kind: str = "error: ") -> int:
    sys.stderr.write(f"specframe: {kind}{text}\n")
    return code


def _callback_failed(text: str) -> None:
    exit_with(FAILURE)
    _say(text, kind="")


def _config_dirs() -> list[str]:
    flags = ("--config-dir", "-cd")
    return [after for flag, after in zip(sys.argv, sys.argv[1:], strict=False) if flag in flags]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags with their values, and the words."""
    flags: list[str] = []
    words: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        is_value = before in VALUE_FLAGS and "=" not in argument
        (flags if is_value or argument.startswith("-") else words).append(argument)
    return flags, words


@contextmanager
def _flags_first() -> Iterator[None]:
    """Put the flags before the words, and the words in Hydra's grammar.

    argparse refuses words on both sides of a flag, as in `tree=chain -m seed=1,2`.
    """
    given = sys.argv
    flags, words = _split(given[1:])
    sys.argv = [given[0], *flags, *for_hydra(words)]
    try:
        yield
    finally:
        sys.argv = given
