"""How far a training is: a bar with our own words, or a line now and then."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from specframe.terminal.progress import StepProgress


class TrainingProgress(Callback):
    """Counts steps with the loss and the time left, and writes a line for every validation.

    steps: at which the training ends; a run that goes on counts from the step where it was.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._progress: StepProgress | None = None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._progress = StepProgress("train", total=self._steps, done=trainer.global_step)
            self._progress.__enter__()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._progress is None:
            return
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None:
            self._progress.begin(f"loss {float(loss):.4f}")
        self._progress.add(trainer.global_step - self._progress.done)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        numbers = {
            name.removeprefix("val/").replace("_", " "): float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith("val/") and not name.startswith("val/top_")
        }
        parts = [f"{name} {number:.3f}" for name, number in numbers.items()]
        sys.stderr.write(f"train: step {trainer.global_step}: held-out {', '.join(parts)}\n")
        sys.stderr.flush()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._close()

    def on_exception(
        self, trainer: Trainer, module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.__exit__()
            self._progress = None
