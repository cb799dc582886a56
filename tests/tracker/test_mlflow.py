"""tracker=mlflow against a stand-in, and against MLflow itself where the extra `track` is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specframe.errors import MissingResource
from specframe.tracker import base
from specframe.tracker.base import TrackedRun
from specframe.tracker.mlflow import MLflow


class Client:
    """Keeps what it is given; knows no experiment at first."""

    runs: list[dict[str, Any]] = []
    experiments: dict[str, str] = {}

    def __init__(self, tracking_uri: str | None) -> None:
        self.uri = tracking_uri

    def get_experiment_by_name(self, name: str) -> Any:
        known = self.experiments.get(name)
        return known and SimpleNamespace(experiment_id=known)

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments) + 7))

    def create_run(self, experiment_id: str, *, run_name: str, tags: dict[str, str]) -> Any:
        run = {"experiment": experiment_id, "name": run_name, "tags": tags, "uri": self.uri}
        self.runs.append(run | {"params": [], "metrics": []})
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.runs) - 1))

    def log_batch(self, run_id: int, *, params: Any = (), metrics: Any = ()) -> None:
        assert len(params) <= 100
        self.runs[run_id]["params"] += params
        self.runs[run_id]["metrics"] += metrics

    def set_terminated(self, run_id: int, status: str) -> None:
        self.runs[run_id]["ended"] = status


def module(monkeypatch: pytest.MonkeyPatch, name: str, **held: Any) -> None:
    made = ModuleType(name)
    made.__dict__.update(held)
    monkeypatch.setitem(sys.modules, name, made)


def test_runs_of_an_experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base, "is_installed", lambda package: True)
    module(monkeypatch, "mlflow")
    module(monkeypatch, "mlflow.tracking", MlflowClient=Client)
    # MLflow's own rule for names.
    allowed = re.compile(r"[/\w.\- ]{1,250}")

    def param(*given: Any) -> Any:
        assert allowed.fullmatch(given[0])
        return given

    metric = param
    module(monkeypatch, "mlflow.entities", Param=param, Metric=metric)
    tracker = MLflow(uri="sqlite:///x.db", experiment="mine")
    config: dict[str, Any] = {f"key{i}": i for i in range(150)} | {"long": "x" * 9000}
    for status in ("ok", "failed"):
        tracker.log(
            TrackedRun(
                name="abc",
                sweep="swept",
                directory=tmp_path,
                status=status,
                config=config,
                numbers={"acceptance_length": 2.5, "category.Q&A/two (é).speedup": 1.0},
            )
        )
    first, second = Client.runs
    assert first["experiment"] == second["experiment"]
    assert (first["ended"], second["ended"]) == ("FINISHED", "FAILED")
    assert first["uri"] == "sqlite:///x.db"
    assert first["tags"]["sweep"] == "swept"
    assert len(first["params"]) == 151
    assert max(len(value) for _, value in first["params"]) == 6000
    assert first["metrics"][0][:2] == ("acceptance_length", 2.5)
    assert first["metrics"][1][:2] == ("category.Q_A_two _é_.speedup", 1.0)


def test_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "is_installed", lambda package: False)
    with pytest.raises(MissingResource, match="tracker=mlflow needs a package: pip install mlflow"):
        MLflow(uri=None, experiment="mine")


def test_mlflow_itself_keeps_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("mlflow.tracking")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    config: dict[str, Any] = {f"tree.key{i}": i for i in range(120)} | {"long": "x" * 9000}
    for name, status in (("first", "ok"), ("second", "failed")):
        run = TrackedRun(
            name=name,
            sweep="swept",
            directory=tmp_path,
            status=status,
            config=config,
            numbers={"acceptance_length": 2.5, "category.Q&A/two (é).speedup": 1.25},
        )
        MLflow(uri=uri, experiment="mine").log(run)
    store = client.MlflowClient(tracking_uri=uri)
    experiment = store.get_experiment_by_name("mine")
    kept = {run.info.run_name: run for run in store.search_runs([experiment.experiment_id])}
    assert {name: run.info.status for name, run in kept.items()} == {
        "first": "FINISHED",
        "second": "FAILED",
    }
    data = kept["first"].data
    assert data.metrics == {"acceptance_length": 2.5, "category.Q_A_two _é_.speedup": 1.25}
    assert (len(data.params), data.params["tree.key7"], len(data.params["long"])) == (
        121,
        "7",
        6000,
    )
    assert (data.tags["sweep"], data.tags["folder"]) == ("swept", str(tmp_path))
