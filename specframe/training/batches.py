"""Batches of similar length; batch k is a pure function of the seed and k, so a run can be cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specframe.training.samples import TrainingSample
from specframe.training.tapped_features import Features

_BUCKET = 16  # sequences whose lengths differ by less are alike


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences padded to the right.

    tokens [B, L]; lengths, starts [B]; weight [B, L] of each token as a prediction's target (1 for
    the answer's, less or 0 for the prompt's, 0 for padding); features: tap -> [B, L, H].
    """

    tokens: Tensor
    lengths: Tensor
    starts: Tensor
    weight: Tensor
    features: dict[str, Tensor]
    categories: tuple[str, ...]

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """The same on a device, features in `dtype`."""
        return replace(
            self,
            tokens=self.tokens.to(device),
            lengths=self.lengths.to(device),
            starts=self.starts.to(device),
            weight=self.weight.to(device),
            features={name: one.to(device, dtype) for name, one in self.features.items()},
        )


def collate(
    samples: Sequence[TrainingSample],
    features: Features,
    taps: Sequence[str],
    *,
    prompt_weight: float,
) -> Batch:
    """One batch. The first token has no weight: nothing predicts it."""
    longest = max(map(len, samples))
    rows = features.of(samples)
    width = rows[0].shape[-1]
    tokens = torch.zeros((len(samples), longest), dtype=torch.long)
    weight = torch.zeros(tokens.shape)
    padded = rows[0].new_zeros((*tokens.shape, width))
    for index, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        size = len(sample)
        tokens[index, :size] = sample.tokens
        weight[index, 1 : sample.start] = prompt_weight
        weight[index, sample.start : size] = 1.0
        padded[index, :size] = row
    parts = padded.split(width // len(taps), dim=-1)
    return Batch(
        tokens=tokens,
        lengths=torch.tensor([len(sample) for sample in samples]),
        starts=torch.tensor([sample.start for sample in samples]),
        weight=weight,
        features=dict(zip(taps, parts, strict=True)),
        categories=tuple(sample.category for sample in samples),
    )


class Order:
    """Which samples make batch k: epochs in a shuffled order, each sample once an epoch.

    max_tokens: rows times longest length of a batch. Samples longer than that go alone.
    """

    def __init__(self, lengths: Sequence[int], *, max_tokens: int, seed: int) -> None:
        self._lengths, self._max_tokens, self._seed = list(lengths), max_tokens, seed
        self._epoch: list[list[int]] = []
        self._first = self._end = self._number = 0

    def __getitem__(self, k: int) -> list[int]:
        """Indices of the samples of batch k (any k >= 0)."""
        if k < self._first:
            self._first = self._end = self._number = 0
        while k >= self._end:
            self._epoch = list(self._batches(self._number))
            self._first, self._end = self._end, self._end + len(self._epoch)
            self._number += 1
        return self._epoch[k - self._first]

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        noise = random.Random(f"{self._seed} {epoch}")
        keyed = [(length // _BUCKET, noise.random(), i) for i, length in enumerate(self._lengths)]
        made = list(grouped([i for _, _, i in sorted(keyed)], self._lengths, self._max_tokens))
        noise.shuffle(made)
        yield from made


def grouped(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Neighbours in `order`, as many as stay within `max_tokens` when padded."""
    group: list[int] = []
    longest = 0
    for index in order:
        longest = max(longest, lengths[index])
        if group and (len(group) + 1) * longest > max_tokens:
            yield group
            group, longest = [], lengths[index]
        group.append(index)
    if group:
        yield group


class StepLoader:
    """Batches 0 .. count - 1 of one process; goes on where its state says.

    rank, ranks: this process and how many there are; together they take consecutive batches.
    """

    def __init__(
        self, order: Order, make: Any, *, count: int, rank: int = 0, ranks: int = 1
    ) -> None:
        self._order, self._make = order, make
        self._count, self._rank, self._ranks = count, rank, ranks
        self._position = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        while self._position < self._count:
            step = self._position
            self._position += 1
            yield self._make(self._order[step * self._ranks + self._rank])

    def state_dict(self) -> dict[str, int]:
        """The next batch's number."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        self._position = state["position"]
