"""Predictions of unrolled steps row by row, and how long a greedy chain of them is accepted.

A held-out answer is the target's own greedy text, so a chain drafted along it is accepted for as
long as its tokens are the text's. `ChainTally` walks each answer as decoding would: a step emits
the right guesses and one token more, and the next step begins behind them. No target runs for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.train.base import FrozenTarget, Guesses
from specframe.training import losses
from specframe.training.teacher_laws import TeacherLaws
from specframe.training.unroll import UnrollWindow


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """The M rows that carry loss at one unrolled step."""

    chosen: Tensor  # [B, A] bool: the pairs that are rows
    sequence: Tensor  # [M] the sequence of each row
    feature: Tensor  # [M] the token whose feature a row predicts
    place: Tensor  # [M] the row of its law
    weight: Tensor  # [M]
    inside: Tensor  # [M] bool: the draft vocabulary has the true token

    @classmethod
    def of(
        cls, window: UnrollWindow, step: int, laws: TeacherLaws, frozen: FrozenTarget
    ) -> StepRows:
        """The rows of an unrolled step."""
        weight = window.weight(step)
        chosen = weight > 0
        sequence, row = chosen.nonzero(as_tuple=True)
        feature = window.index[sequence, row] + 1 + step
        token = window.truth(step)[chosen]
        return cls(
            chosen=chosen,
            sequence=sequence,
            feature=feature,
            place=laws.place[sequence, feature],
            weight=weight[chosen],
            inside=frozen.row_of[token] >= 0,
        )


def target_head_loss(
    states: Tensor, at: StepRows, laws: TeacherLaws, frozen: FrozenTarget
) -> Tensor:
    """Mean cross entropy of states [M, H] that the target's own head reads, over the rows `at`.

    A row whose true token is not in the draft vocabulary has no law to learn and does not count.
    """
    weight = at.weight * at.inside
    if frozen.table is not None:
        return losses.frozen_cross_entropy(states, weight, frozen.table, laws, at.place)
    logits = frozen.head(states)
    return losses.weighted_mean(losses.cross_entropy(logits, laws.shares[at.place]), weight)


def guesses_of(
    states: Iterable[Tensor],
    window: UnrollWindow,
    head: Callable[[Tensor, int], Tensor],
    frozen: FrozenTarget,
    *,
    top: int,
) -> Guesses:
    """What a head guesses from the states of consecutive steps, [B, A, H] each.

    head: rows [M, H] of a step -> logits [M, Vd]. top: guesses at each place.
    """
    tokens, truth, is_counted = [], [], []
    answer = window.batch.starts[:, None]
    for step, predicted in enumerate(states):
        place = window.index + 2 + step
        # The root of a draft is a token of the answer.
        count = (window.index + 1 >= answer) & (place < window.batch.lengths[:, None])
        with torch.autocast(predicted.device.type, enabled=False):
            # Logits in half precision tie, and a tie is a coin tossed on a guess.
            wide = predicted[count].to(torch.promote_types(predicted.dtype, torch.float32))
            rows = head(wide, step).topk(top, dim=-1).indices
        guess = torch.full((*count.shape, top), -1, device=rows.device)
        guess[count] = frozen.target_tokens(rows)
        tokens.append(guess)
        truth.append(window.truth(step))
        is_counted.append(count)
    return Guesses(
        tokens=torch.stack(tokens, dim=2),
        truth=torch.stack(truth, dim=2),
        is_counted=torch.stack(is_counted, dim=2),
        # Pair t predicts token t + 2; the first one drafted follows token `start`.
        first=window.batch.starts - 1 - window.index[:, 0],
    )


@dataclass(kw_only=True)
class ChainTally:
    """Sums over held-out answers; lists are by depth, mappings by category."""

    depth: int
    num_guesses: list[int]  # places at which a depth could guess
    num_right: list[int]  # of them, those whose first guess is the true token
    num_among: list[int]  # those whose best few guesses have it
    num_emitted: dict[str, int]  # tokens that the steps of the simulated chain emit
    num_steps: dict[str, int]

    @classmethod
    def empty(cls, depth: int) -> ChainTally:
        """A tally of nothing yet."""
        zeros = [0] * depth
        return cls(
            depth=depth,
            num_guesses=[*zeros],
            num_right=[*zeros],
            num_among=[*zeros],
            num_emitted={},
            num_steps={},
        )

    def add(self, guesses: Guesses, categories: Iterable[str]) -> None:
        """Count one batch."""
        same = guesses.tokens == guesses.truth[..., None]
        right = (same[..., 0] & guesses.is_counted).cpu()
        among = (same.any(-1) & guesses.is_counted).cpu()
        counted = guesses.is_counted.cpu()
        for depth in range(counted.shape[-1]):  # Medusa may have fewer heads
            self.num_guesses[depth] += int(counted[:, :, depth].sum())
            self.num_right[depth] += int(right[:, :, depth].sum())
            self.num_among[depth] += int(among[:, :, depth].sum())
        lengths = right.int().cumprod(-1).sum(-1).tolist()  # [B, A] accepted from each place
        room = counted[:, :, 0].tolist()
        for row, category in enumerate(categories):
            self._walk(lengths[row], room[row], int(guesses.first[row]), category)

    def _walk(self, lengths: list[int], room: list[bool], at: int, category: str) -> None:
        """One answer as a greedy chain would decode it: the text is the target's own."""
        while at < len(lengths) and room[at]:
            # The bonus token is part of the text only where the text goes on.
            step = min(lengths[at] + 1, sum(room[at:]))
            self.num_emitted[category] = self.num_emitted.get(category, 0) + step
            self.num_steps[category] = self.num_steps.get(category, 0) + 1
            at += step

    def numbers(self) -> dict[str, float]:
        """acceptance_length of the chain, and accuracies by depth, 1 being the first token."""
        num_steps = max(1, sum(self.num_steps.values()))
        numbers = {"acceptance_length": sum(self.num_emitted.values()) / num_steps}
        for depth, count in enumerate(self.num_guesses):
            if not count:
                break
            numbers[f"top1_depth{depth + 1}"] = self.num_right[depth] / count
            numbers[f"top_depth{depth + 1}"] = self.num_among[depth] / count
        return numbers

    def by_category(self) -> dict[str, float]:
        """acceptance_length of the chain."""
        steps = sorted(self.num_steps.items())
        return {name: self.num_emitted[name] / count for name, count in steps}
