"""Lightning's Trainer around a head: callbacks, loggers, resuming, and how a training ends."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from specframe.errors import ConfigError
from specframe.storage.differences import first_difference
from specframe.training.head_module import HeadInTraining
from specframe.training.loader import AnswerLoader
from specframe.training.training_progress import TrainingProgress

MONITOR = "val/acceptance_length"


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Keys of Lightning's Trainer, and when training is validated and ended."""

    accelerator: str
    devices: int | str | list[int]
    strategy: str
    check_every: int  # steps between two validations, each of which is followed by a checkpoint
    patience: int | None  # validations without a longer acceptance before the end; None: never


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The outcome of a training."""

    best: Path  # checkpoint of the longest held-out acceptance
    is_main: bool  # this process is the one that exports


def fit(
    module: HeadInTraining, data: AnswerLoader, *, settings: TrainerSettings, folder: Path
) -> FitResult:
    """Train to the end, going on from `folder`'s newest checkpoint if there is one.

    Raises KeyboardInterrupt when the run was stopped by a signal, ConfigError if the checkpoint is
    of another run.
    """
    newest = newest_checkpoint(folder / "checkpoints")
    if newest is not None:
        _check_same(newest, module)
        _tidy(newest)
    precision = torch.get_float32_matmul_precision()
    with _quiet():
        trainer = _trainer(module, settings, folder)
        try:
            trainer.fit(module, datamodule=data, ckpt_path=newest, weights_only=True)
        except SystemExit:
            # Lightning leaves by an exit on Ctrl-C.
            raise KeyboardInterrupt(f"resume with the same command; {folder}") from None
        finally:
            torch.set_float32_matmul_precision(precision)
    if trainer.received_sigterm or trainer.interrupted:
        raise KeyboardInterrupt(f"resume with the same command; {folder}")
    if trainer.is_global_zero and newest is not None:
        last = newest_checkpoint(folder / "checkpoints")
        assert last is not None
        _tidy(last)
    return FitResult(best=_best(trainer), is_main=trainer.is_global_zero)


def load_head(module: HeadInTraining, checkpoint: Path) -> None:
    """Put a checkpoint's weights into the head."""
    checkpointed = torch.load(checkpoint, map_location="cpu", weights_only=True)
    module.load_state_dict(checkpointed["state_dict"], strict=True)


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the most steps among those that resume, None without any."""
    by_step = {}
    for path in folder.glob("step=*.ckpt"):
        number = re.fullmatch(r"step=(\d+)(-v\d+)?\.ckpt", path.name)
        if number is not None:
            by_step[int(number[1])] = path
    return by_step[max(by_step)] if by_step else None


def _tidy(newest: Path) -> None:
    """Delete the older checkpoints that a killed run left."""
    for older in newest.parent.glob("step=*.ckpt"):
        if older != newest:
            older.unlink(missing_ok=True)


def _check_same(checkpoint: Path, module: HeadInTraining) -> None:
    """Raises ConfigError if the checkpoint is of another recipe, other data, another target."""
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)["specframe"]
    difference = first_difference(saved.get("identity", {}), module.identity)
    if difference is not None:
        raise ConfigError(
            f"hydra.run.dir={checkpoint.parents[1]}: its training was begun with {difference}; "
            "give the old value or another folder"
        )


def _trainer(module: HeadInTraining, settings: TrainerSettings, folder: Path) -> Trainer:
    steps = module.schedule.max_steps
    interval = min(settings.check_every, steps)
    callbacks: list[Callback] = [LearningRateMonitor(logging_interval="step")]
    if settings.patience is not None:
        callbacks.append(EarlyStopping(monitor=MONITOR, mode="max", patience=settings.patience))
    callbacks.append(TrainingProgress(steps // interval * interval))
    callbacks += _checkpoints(folder / "checkpoints")
    logs = folder / "logs"
    return Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        strategy=settings.strategy,
        precision=module.schedule.precision,
        max_steps=steps // interval * interval,
        max_epochs=1,
        # A new folder for every attempt: a CSV logger empties the one it is given.
        logger=[
            CSVLogger(str(logs), name="csv"),
            TensorBoardLogger(str(logs), name="tensorboard", version=0),
        ],
        callbacks=callbacks,
        val_check_interval=interval,
        num_sanity_val_steps=0,
        log_every_n_steps=10,
        gradient_clip_val=module.schedule.clip,
        gradient_clip_algorithm=None if module.schedule.clip is None else "value",
        use_distributed_sampler=False,
        enable_progress_bar=False,  # ours speaks of steps, not of epochs
        enable_model_summary=False,
        default_root_dir=folder,
    )


def _checkpoints(folder: Path) -> list[Callback]:
    """The best is saved first, so that the newest, from which a run goes on, records it.

    Nothing is saved on Ctrl-C, which may come in the midst of an optimiser's step.
    """
    best = ModelCheckpoint(
        dirpath=folder,
        filename="best",
        monitor=MONITOR,
        mode="max",
        save_top_k=1,
        save_weights_only=True,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )
    newest = ModelCheckpoint(
        dirpath=folder,
        filename="step={step}",
        auto_insert_metric_name=False,
        save_top_k=1,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )
    return [best, newest]


def _best(trainer: Trainer) -> Path:
    paths = [
        callback.best_model_path
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint) and callback.monitor
    ]
    assert paths and paths[0], "every run ends with a validation"
    return Path(paths[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's tips, and its advice on loaders, which does not hold for ours."""
    names = ("lightning.pytorch", "lightning.fabric")
    loggers = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    for logger, _ in loggers:
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning.*")
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        try:
            yield
        finally:
            for logger, level in loggers:
                logger.setLevel(level)
