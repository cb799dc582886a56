"""A training speaks of steps and of the time left, and in our own words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specframe.terminal import progress
from specframe.training.fit import TrainerSettings, _trainer
from specframe.training.training_progress import TrainingProgress


def trainer(step: int, **metrics: float) -> Any:
    values = {name.replace("__", "/"): torch.tensor(value) for name, value in metrics.items()}
    return SimpleNamespace(is_global_zero=True, global_step=step, callback_metrics=values)


def test_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    module: Any = None
    shown = TrainingProgress(100)
    shown.on_train_start(trainer(40), module)
    for step in (41, 42):
        clock[0] += 20.0
        shown.on_train_batch_end(trainer(step, train__loss=1.25), module, None, None, 0)
    assert capsys.readouterr().err == "train: 41/100, loss 1.2500, about 39 min left\n"
    held = {"val__acceptance_length": 1.5, "val__top_1": 0.5}
    shown.on_validation_end(trainer(42, **held), module)
    assert capsys.readouterr().err == "train: step 42: held-out acceptance length 1.500\n"
    shown.on_train_end(trainer(42), module)
    assert shown._progress is None


def test_lightnings_own_bar_is_off(tmp_path: Any) -> None:
    schedule = SimpleNamespace(max_steps=4, precision="32-true", clip=None)
    settings = TrainerSettings(
        accelerator="cpu", devices=1, strategy="auto", check_every=2, patience=None
    )
    module: Any = SimpleNamespace(schedule=schedule)
    made = _trainer(module, settings, tmp_path)
    assert made.progress_bar_callback is None
    assert any(isinstance(callback, TrainingProgress) for callback in made.callbacks)
