"""TensorBoard: scalars, and a row of its table of hyperparameters."""

from __future__ import annotations

import json
from typing import ClassVar

from specframe.tracker.base import TrackedRun, Tracker


class TensorBoard(Tracker):
    """Writes `tensorboard/` in each run's folder.

    `tensorboard --logdir` takes the folder of a run or of a sweep.
    """

    word: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"

    def log(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(run.directory / "tensorboard")) as writer:
            settings = {**run.config, "status": run.status}
            writer.add_text("config", f"```\n{json.dumps(settings, indent=1)}\n```")
            # With the run's own folder as its name, the row stands beside its scalars.
            writer.add_hparams(settings, run.numbers, run_name=".")
