"""The suite of tests for tasks."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specframe.compose import run_task
from specframe.compose.overrides import compose
from specframe.task.base import TASKS
from specframe.testing.defaults import ComponentContract


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that has ended: its exit code and its folder."""

    code: Any
    folder: Path


class TaskContract(ComponentContract):
    """A task takes an engine and a folder, and leaves files there.

    words: the rest of a small command, such as `prompt=abc`; a fixture `extra` may make them.
    """

    words: ClassVar[tuple[str, ...]] = ("target=toy", "drafter=ngram", "prompt=abcab")

    @pytest.fixture
    def extra(self) -> tuple[str, ...]:
        """The rest of the command."""
        return type(self).words

    @pytest.fixture
    def finished(self, name: str, extra: tuple[str, ...], tmp_path: Path) -> Finished:
        """One run of the command."""
        config = compose([f"task={name}", *extra, *self.keys("task")])
        try:
            run_task.run(config, output_dir=tmp_path / "run")
        except SystemExit as ended:
            return Finished(code=ended.code, folder=tmp_path / "run")
        return Finished(code=0, folder=tmp_path / "run")

    def test_its_verdict_is_an_exit_code(self, finished: Finished) -> None:
        assert finished.code in (0, 1)

    def test_it_leaves_a_file_beside_the_manifest(self, finished: Finished) -> None:
        files = {file.name for file in finished.folder.rglob("*") if file.is_file()}
        assert "manifest.json" in files
        assert len(files) > 1, "a run that leaves nothing cannot be looked at again"

    def test_datasheet(self, name: str) -> None:
        assert inspect.getdoc(TASKS.get(name)), "a task says what it does and what it leaves"
