"""MLflow: a run with parameters, metrics and a tag for the sweep."""

from __future__ import annotations

import re
import time
from typing import ClassVar

from specframe.sweep.point import OK
from specframe.tracker.base import TrackedRun, Tracker

_PARAMS, _METRICS = 100, 1000  # MLflow takes at most so many in one call
_LONGEST = 6000  # characters of a parameter
_LONGEST_NAME = 250
_NO_NAME = re.compile(r"[^\w.\- ]")  # characters that MLflow refuses; a slash makes folders


class MLflow(Tracker):
    """Logs to `uri` (null: MLFLOW_TRACKING_URI, else MLflow's own default) under `experiment`."""

    word: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"

    def __init__(self, *, uri: str | None, experiment: str) -> None:
        super().__init__()
        self.uri = uri
        self.experiment = experiment

    def log(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment_id = (
            client.create_experiment(self.experiment) if known is None else known.experiment_id
        )
        tags = {"status": run.status, "folder": str(run.directory), "sweep": run.sweep or ""}
        run_id = client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        now = time.time_ns() // 1_000_000
        params = [Param(_name(key), str(value)[:_LONGEST]) for key, value in run.config.items()]
        metrics = [Metric(_name(key), value, now, 0) for key, value in run.numbers.items()]
        for start in range(0, len(params), _PARAMS):
            client.log_batch(run_id, params=params[start : start + _PARAMS])
        for start in range(0, len(metrics), _METRICS):
            client.log_batch(run_id, metrics=metrics[start : start + _METRICS])
        client.set_terminated(run_id, "FINISHED" if run.status == OK else "FAILED")


def _name(key: str) -> str:
    """A key as MLflow accepts it; a category of prompts may have any name."""
    return _NO_NAME.sub("_", key)[:_LONGEST_NAME]
