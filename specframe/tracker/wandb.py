"""Weights & Biases: a run with its configuration and numbers, off-line by default."""

from __future__ import annotations

from typing import ClassVar, Literal

from specframe.sweep.point import OK
from specframe.tracker.base import TrackedRun, Tracker


class WandB(Tracker):
    """Logs to `project`. Off-line it writes `wandb/` in each run's folder, for `wandb sync`."""

    word: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def __init__(self, *, project: str, mode: Literal["offline", "online"]) -> None:
        super().__init__()
        self.project = project
        self.mode = mode

    def log(self, run: TrackedRun) -> None:
        import wandb

        logged = wandb.init(
            project=self.project,
            mode=self.mode,
            dir=str(run.directory),
            name=run.name,
            group=run.sweep,
            config={**run.config, "status": run.status},
            reinit="create_new",
            settings=wandb.Settings(silent=True),
        )
        logged.log(run.numbers)
        logged.finish(exit_code=0 if run.status == OK else 1)
