"""tracker=tensorboard, read back by TensorBoard itself; and what holds for every tracker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn
from hydra.types import RunMode
from omegaconf import OmegaConf

import specframe
from specframe.tracker.base import TrackedRun, Tracker

REPOSITORY = Path(specframe.__file__).parents[1]


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


@pytest.mark.slow
def test_every_point_of_a_sweep(tmp_path: Path) -> None:
    words = "target=toy drafter=ngram tree=chain max_new_tokens=8 task.stream=false seed=1,-1"
    where = ("tracker=tensorboard", "hydra.sweep.dir=swept")
    done = subprocess.run(
        [sys.executable, "-m", "specframe", "-m", *words.split(), *where],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "tracker" not in done.stderr.replace("tracker=tensorboard", "")
    seen = {}
    for file in (tmp_path / "swept").glob("*/status.json"):
        point = json.loads(file.read_text())
        seen[point["status"]] = read(file.parent / "tensorboard")
    numbers = json.loads(next((tmp_path / "swept").glob("*/metrics.json")).read_text())
    (scalar,) = seen["ok"].Scalars("acceptance_length")
    assert scalar.value == pytest.approx(numbers["acceptance_length"])
    hparams = b"".join(
        content for _, content in sorted(seen["ok"].PluginTagToContent("hparams").items())
    )
    assert b"drafter" in hparams
    assert seen["failed"].Tags()["scalars"] in ([], ["hp_metric"])


class Told(Tracker):
    """Remembers what it is told."""

    word = "told"
    package = "json"

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[TrackedRun] = []

    def log(self, run: TrackedRun) -> None:
        self.runs.append(run)


def ended(folder: Path, mode: RunMode = RunMode.RUN) -> Any:
    """The composed configuration of a job in this folder."""
    config = {
        "seed": 3,
        "tree": {"name": "chain", "paths": [[0]]},
        "hydra": {
            "runtime": {
                "output_dir": str(folder),
                "choices": {"tree": "chain", "data": None, "hydra/launcher": "basic"},
            },
            "mode": mode,
        },
    }
    return OmegaConf.create(config)


def test_what_a_tracker_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "sweep" / "abc"
    folder.mkdir(parents=True)
    numbers = {"acceptance_length": 2, "worst": float("nan"), "reason": "text", "none": None}
    (folder / "metrics.json").write_text(json.dumps(numbers))
    tracker = Told()
    tracker.on_job_end(ended(folder), job_return=JobReturn())
    tracker.on_job_end(ended(folder, RunMode.MULTIRUN), job_return=JobReturn())
    alone, point = tracker.runs
    assert (alone.name, alone.sweep, alone.status) == ("abc", None, "ok")
    assert point.sweep == "sweep"
    assert alone.numbers == {"acceptance_length": 2.0}
    assert alone.config == {
        "tree": "chain",
        "seed": 3,
        "tree.name": "chain",
        "tree.paths": "[[0]]",
    }


def test_a_point_that_was_finished_before_is_told_once(tmp_path: Path) -> None:
    record = {"number": 0, "status": "ok", "reason": "", "overrides": [], "choices": {}}
    record |= {"config_hash": "", "seconds": 1, "results": [], "directory": "", "command": ""}
    tracker = Told()
    for reused in (True, True, False):
        text = json.dumps(record | {"config": {}, "reused": reused})
        (tmp_path / "status.json").write_text(text)
        tracker.on_job_end(ended(tmp_path), job_return=JobReturn())
    assert len(tracker.runs) == 2
