"""The command line, or a task alone, within this process: another one takes seconds to start."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from specframe.cli import main
from specframe.session.engine import Engine
from specframe.task.base import Job


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def may_be_interrupted() -> None:
    """For a child process: Ctrl-C works there, although a shell may have had this one ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


Command = Callable[..., Ended]


def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """`run(*words, typed="")`: as `python -m specframe words...` with a pipe at both ends."""

    def run(*words: str, typed: str = "") -> Ended:
        monkeypatch.setattr(sys, "argv", ["specframe", *words])
        monkeypatch.setattr(sys, "stdin", StringIO(typed))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(code=ended.value.code, out=out, err=err)

    return run


def job_of(engine: Engine, folder: Path, **changes: Any) -> Job:
    """What a task is handed: an engine and a folder, no prompts of the user's unless given."""
    values = {"config": {}, "prompt": None, "prompts": None, "rebuild": lambda more: engine}
    return Job(**{**values, "engine": engine, "output_dir": folder, **changes})
