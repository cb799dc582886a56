"""TensorBoard: scalars, and a row of its table of hyperparameters."""

from __future__ import annotations

import json
from typing import ClassVar

from specframe.tracker.base import TrackedRun, Tracker


class TensorBoard(Tracker):
    """Writes `tensorboard/` in each run's folder; `tensorboard --logdir` takes a run's folder or a
    sweep's."""

    word: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"

    def log(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(run.directory / "tensorboard")) as writer:
            told = {**run.config, "status": run.status}
            writer.add_text("config", f"```\n{json.dumps(told, indent=1)}\n```")
            # With the run's own folder as its name, the row stands beside its scalars.
            writer.add_hparams(told, run.numbers, run_name=".")
