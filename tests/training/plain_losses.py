"""The losses of the recipes once more, row by row, in the plainest words there are.

The laws come from whole passes of the model, not from the cached states; only the predicted states
are those of the code under test, whose unrolling has a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specframe.target.hf import HF
from specframe.training.samples import TrainingSample
from tests.small_models import full_logits

IDS = torch.arange(0, 97, 2)  # a draft vocabulary without every other token
WEIGHT = 0.5  # of prompt tokens, so that weights are seen


@dataclass(frozen=True, kw_only=True)
class Row:
    """A prediction of token `place` of sample `sequence`, made by the pair `pair`."""

    sequence: int
    pair: int
    place: int
    weight: float
    token: int


def rows_at(part: Sequence[TrainingSample], step: int, prompt_weight: float) -> list[Row]:
    """The predictions that carry loss at a step: pair t predicts token t + 2 + step."""
    rows = []
    for sequence, sample in enumerate(part):
        for pair in range(len(sample) - 2 - step):
            place = pair + 2 + step
            weight = 1.0 if place >= sample.start else prompt_weight
            begins = 0 if prompt_weight else sample.start - 2
            if weight and pair >= begins:
                token = int(sample.tokens[place])
                rows.append(
                    Row(sequence=sequence, pair=pair, place=place, weight=weight, token=token)
                )
    return rows


def mean(rows: Sequence[Row], value: Callable[[Row], Tensor]) -> Tensor:
    """The weighted mean of a value over rows."""
    total = sum(row.weight for row in rows)
    return torch.stack([row.weight * value(row) for row in rows]).sum() / total


def steps_of(terms: Sequence[Tensor], decay: float) -> Tensor:
    """The mean of the steps with weights 1, decay, decay^2, ..."""
    total = torch.zeros((), dtype=torch.float64)
    for step, term in enumerate(terms):
        total = total + decay**step * term
    return total / sum(decay**step for step in range(len(terms)))


def law(target: HF, part: Sequence[TrainingSample], row: Row, ids: Tensor) -> Tensor:
    """[Vd] the target's law of the token that a row predicts, over the draft vocabulary."""
    tokens = part[row.sequence].tokens[: row.place].tolist()
    with torch.no_grad():
        return full_logits(target.model, tokens)[-1].double()[ids].softmax(-1)


def entropy_against(shares: Tensor, logits: Tensor) -> Tensor:
    """-sum_v c(v) log softmax(logits)(v)."""
    return -(shares * logits.log_softmax(-1)).sum()


def head_of(target: HF, ids: Tensor) -> Callable[[Tensor], Tensor]:
    """The target's output head over the draft vocabulary."""
    table: Any = target.model.lm_head.weight
    return lambda state: state.double() @ table.detach().double()[ids].t()


def has(row: Row, ids: Tensor) -> bool:
    """Whether the draft vocabulary has the token that a row predicts."""
    return row.token in ids.tolist()
