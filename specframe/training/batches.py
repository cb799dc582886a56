"""Batches of sequences of similar length.

Batch k is a pure function of the seed and k, so a training that was cut goes on with the batches
that it would have had.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specframe.training.feature_cache import FeatureCache
from specframe.training.samples import TrainingSample

_BUCKET = 16  # tokens; lengths in one bucket count as equal


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences padded to the right."""

    tokens: Tensor  # [B, L]
    lengths: Tensor  # [B]
    starts: Tensor  # [B] where the answers begin
    weight: Tensor  # [B, L] of each token where it is predicted; 1 in answers, 0 in padding
    features: dict[str, Tensor]  # tap -> [B, L, H]
    categories: tuple[str, ...]  # of the prompts

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """The same batch on a device, its features in `dtype`."""
        return replace(
            self,
            tokens=self.tokens.to(device),
            lengths=self.lengths.to(device),
            starts=self.starts.to(device),
            weight=self.weight.to(device),
            features={name: states.to(device, dtype) for name, states in self.features.items()},
        )


def collate(
    samples: Sequence[TrainingSample],
    features: FeatureCache,
    taps: Sequence[str],
    *,
    prompt_weight: float,
) -> Batch:
    """One batch. prompt_weight: of the prompts' tokens but the first, which nothing predicts."""
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


class BatchOrder:
    """The samples of batch k: each sample once an epoch, in an order shuffled anew every epoch.

    max_tokens: largest product of a batch's rows and its longest length. A sample that is longer
    makes a batch of its own.
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
        order = [index for _, _, index in sorted(keyed)]
        batches = list(groups_within(order, self._lengths, self._max_tokens))
        noise.shuffle(batches)
        yield from batches


def groups_within(
    order: Sequence[int], lengths: Sequence[int], max_tokens: int
) -> Iterator[list[int]]:
    """Runs of neighbours in `order`, as long as they stay within `max_tokens` when padded."""
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
    """Batches 0 .. count - 1 of one process; it goes on where its state says.

    make: the batch of these samples. rank, ranks: this process and the number of processes, which
    together take consecutive batches.
    """

    def __init__(
        self, order: BatchOrder, make: Any, *, count: int, rank: int = 0, ranks: int = 1
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
        """The number of the next batch."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        self._position = state["position"]
