"""The module that Lightning trains: a head, its loss and its optimiser.

The target is no submodule of it: it is frozen, never moved, saved or switched between modes.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from specframe.train.base import FrozenTarget, Recipe
from specframe.training.batches import Batch
from specframe.training.chains import ChainTally
from specframe.training.schedule import Schedule

TOP = 5  # guesses of `top_depth`, as in the published accuracies of Medusa's heads


class HeadInTraining(LightningModule):
    """A head in training; its weights are all that a checkpoint holds of the model.

    depth: drafted tokens of the simulated chain. identity: plain values that a checkpoint and the
    run that goes on from it must share. surroundings: machine and versions, which may differ; each
    session of a training is recorded with its own.
    """

    def __init__(
        self,
        head: nn.Module,
        *,
        recipe: Recipe,
        frozen: FrozenTarget,
        schedule: Schedule,
        depth: int,
        seed: int,
        identity: dict[str, Any],
        surroundings: dict[str, Any],
    ) -> None:
        super().__init__()
        self.head = head
        self.recipe, self.frozen, self.schedule = recipe, frozen, schedule
        self.depth, self.seed, self.identity = depth, seed, identity
        self.tally = ChainTally.empty(depth)
        self.num_tokens = 0  # answer tokens on which this process trained
        self.seconds = 0.0  # of training and validating, those before a resume included
        self.curve: list[dict[str, float]] = []  # the numbers of every validation
        self.sessions = [{"first_step": 0, **surroundings}]  # those before a resume included
        self._since = time.monotonic()

    def on_fit_start(self) -> None:
        # On a CPU this takes oneDNN for float32, twice as fast as MKL on AMD; `fit` puts it back.
        torch.set_float32_matmul_precision("medium")

    def on_train_start(self) -> None:
        self._since = time.monotonic()

    def on_train_end(self) -> None:
        self._count_time()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # The noise of a step depends on the step alone, so a run that was cut continues bit-equal.
        torch.manual_seed(self.seed + self.global_step)

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        parameter = next(self.head.parameters())
        return batch.to(device, parameter.dtype)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        terms = self.recipe.losses(self.head, self.frozen, batch, self._progress())
        self.num_tokens += int((batch.lengths - batch.starts).sum())
        named = {f"train/{name}": value.detach() for name, value in terms.items()}
        named["train/tokens"] = torch.tensor(float(self.num_tokens))
        self.log_dict(named, on_step=True, on_epoch=False, batch_size=len(batch.tokens))
        return terms["loss"]

    def on_validation_epoch_start(self) -> None:
        self.tally = ChainTally.empty(self.depth)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        guesses = self.recipe.guesses(self.head, self.frozen, batch, depth=self.depth, top=TOP)
        self.tally.add(guesses, batch.categories)

    def on_validation_epoch_end(self) -> None:
        numbers = self.tally.numbers()
        loss = self.trainer.callback_metrics.get("train/loss")
        shown = {} if loss is None else {"loss": float(loss)}
        self.curve.append({"step": float(self.global_step), **shown, **numbers})
        self.log_dict({f"val/{name}": value for name, value in numbers.items()}, batch_size=1)

    def configure_optimizers(self) -> Any:
        schedule = self.schedule
        optimiser = torch.optim.AdamW(
            self.recipe.groups(self.head, schedule),
            lr=schedule.lr,
            betas=schedule.betas,
            weight_decay=schedule.weight_decay,
        )
        rates = torch.optim.lr_scheduler.LambdaLR(optimiser, schedule.factor)
        return {
            "optimizer": optimiser,
            "lr_scheduler": {"scheduler": rates, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._count_time()
        checkpoint["specframe"] = {
            "identity": self.identity,
            "num_tokens": self.num_tokens,
            "seconds": self.seconds,
            "curve": [*self.curve],
            "sessions": [*self.sessions],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        progress = checkpoint["specframe"]
        self.num_tokens, self.seconds = progress["num_tokens"], progress["seconds"]
        self.curve = [*progress["curve"]]
        this = self.sessions[-1] | {"first_step": checkpoint["global_step"]}
        self.sessions = [*progress["sessions"], this]

    def _progress(self) -> float:
        return self.global_step / self.schedule.max_steps

    def _count_time(self) -> None:
        now = time.monotonic()
        self.seconds, self._since = self.seconds + now - self._since, now
