"""The samples and their features as Lightning's data module."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningDataModule

from specframe.training.batches import Batch, BatchOrder, StepLoader, collate, groups_within
from specframe.training.feature_cache import FeatureCache
from specframe.training.samples import DataSplit, TrainingSample

_LINE_EVERY_S = 30.0


class AnswerLoader(LightningDataModule):
    """Training batches by step and held-out batches by length.

    taps: names of the states side by side in a feature row. batch_tokens: largest product of a
    batch's rows and its longest length. steps: training batches of one process.
    """

    def __init__(
        self,
        samples: DataSplit,
        features: FeatureCache,
        *,
        taps: Sequence[str],
        prompt_weight: float,
        batch_tokens: int,
        steps: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.samples, self.features, self.taps = samples, features, tuple(taps)
        self.prompt_weight, self.batch_tokens = prompt_weight, batch_tokens
        self.steps, self.seed = steps, seed

    def prepare_data(self) -> None:
        """Fill the cache of features; Lightning calls this in one process."""
        shown = time.monotonic()

        def tick(done: int, count: int) -> None:
            nonlocal shown
            if time.monotonic() - shown >= _LINE_EVERY_S or done == count:
                shown = time.monotonic()
                sys.stderr.write(f"train: features of {done}/{count} answers\n")

        self.features.fill(tick)

    def train_dataloader(self) -> StepLoader:
        """The training batches, by step."""
        trainer = self.trainer
        lengths = [len(sample) for sample in self.samples.train]
        return StepLoader(
            BatchOrder(lengths, max_tokens=self.batch_tokens, seed=self.seed),
            lambda indices: self._batch(self.samples.train, indices, self.prompt_weight),
            count=self.steps,
            rank=0 if trainer is None else trainer.global_rank,
            ranks=1 if trainer is None else trainer.world_size,
        )

    def val_dataloader(self) -> Any:
        """The held-out batches, the same in every process, so that all stop together."""
        return _Heldout(self)

    def _batch(
        self, part: Sequence[TrainingSample], indices: Sequence[int], weight: float
    ) -> Batch:
        picked = [part[index] for index in indices]
        return collate(picked, self.features, self.taps, prompt_weight=weight)


class _Heldout:
    """Held-out samples, short ones first. Prompts carry no weight here."""

    def __init__(self, data: AnswerLoader) -> None:
        self._data = data
        lengths = [len(sample) for sample in data.samples.heldout]
        order = sorted(range(len(lengths)), key=lambda index: lengths[index])
        self._groups = list(groups_within(order, lengths, data.batch_tokens))

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Any:
        for group in self._groups:
            yield self._data._batch(self._data.samples.heldout, group, 0.0)
