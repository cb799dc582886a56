"""The suite of tests for trackers."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specframe.compose.catalogue import configuration, schema
from specframe.tracker.base import TrackedRun, Tracker

RUN = TrackedRun(
    name="0",
    sweep="swept",
    directory=Path(),
    status="ok",
    config={"drafter": "ngram", "tree.max_nodes": 16, "task.stream": False},
    numbers={"acceptance_length": 1.5, "tokens_per_s": 80.0},
)


class TrackerContract:
    """A tracker is named by its YAML file, and logs runs that ended well and runs that failed.

    word: the tracker's; values: values of its YAML keys for the suite. The working directory is an
    empty one.
    """

    word: ClassVar[str]
    values: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def tracker(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
        """The tracker that Hydra would make of its YAML file."""
        monkeypatch.chdir(tmp_path)
        with configuration() as loader:
            ((word, content),) = schema(loader, "tracker", type(self).word).items()
        assert word == type(self).word, "the file, its one key and the class say one word"
        module, _, name = content["_target_"].rpartition(".")
        values = {key: value for key, value in content.items() if not key.startswith("_")}
        cls = getattr(importlib.import_module(module), name)
        tracker: Tracker = cls(**{**values, **type(self).values})
        return tracker

    def test_it_is_the_tracker_of_its_word(self, tracker: Tracker) -> None:
        assert isinstance(tracker, Tracker)
        assert tracker.word == type(self).word
        assert inspect.getdoc(type(tracker)), "a tracker says what it writes, and where"

    @pytest.mark.parametrize("status", ["ok", "skipped", "failed"])
    def test_a_run_is_logged(self, tracker: Tracker, tmp_path: Path, status: str) -> None:
        folder = tmp_path / "run"
        folder.mkdir()
        numbers = RUN.numbers if status == "ok" else {}
        run = replace(RUN, directory=folder, status=status, numbers=numbers)
        tracker.log(run)
        tracker.log(replace(run, name="1", sweep=None, config={}))
