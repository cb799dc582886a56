"""Predictions of unrolled steps row by row, and how long a greedy chain of them is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.train.base import Frozen, Guesses
from specframe.training import losses
from specframe.training.teacher_laws import TeacherLaws
from specframe.training.unroll import UnrollWindow


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """The M rows that carry loss at one step. chosen [B, A] bool; sequence, feature [M]: whose, and
    which of its tokens' features is predicted; place [M]: its law's row; weight [M]; inside [M]
    bool: the true token is in the draft vocabulary."""

    chosen: Tensor
    sequence: Tensor
    feature: Tensor
    place: Tensor
    weight: Tensor
    inside: Tensor

    @classmethod
    def of(cls, window: UnrollWindow, step: int, laws: TeacherLaws, frozen: Frozen) -> Stepped:
        """Rows of an unrolled step."""
        weight = window.weight(step)
        chosen = weight > 0
        sequence, row = chosen.nonzero(as_tuple=True)
        feature = window.index[sequence, row] + 1 + step
        token = window.predicted(step)[chosen]
        return cls(
            chosen=chosen,
            sequence=sequence,
            feature=feature,
            place=laws.place[sequence, feature],
            weight=weight[chosen],
            inside=frozen.row_of[token] >= 0,
        )


def borrowed_loss(states: Tensor, at: Stepped, laws: TeacherLaws, frozen: Frozen) -> Tensor:
    """Mean cross entropy of states [M, H] that the target's own head reads, over the rows of `at`.

    A token that the draft vocabulary lacks cannot be drafted: no law to learn there.
    """
    weight = at.weight * at.inside
    if frozen.table is not None:
        return losses.frozen_cross_entropy(states, weight, frozen.table, laws, at.place)
    logits = frozen.head(states)
    return losses.mean(losses.cross_entropy(logits, laws.shares[at.place]), weight)


def guessed(
    states: Iterable[Tensor],
    window: UnrollWindow,
    head: Callable[[Tensor, int], Tensor],
    frozen: Frozen,
    *,
    top: int,
) -> Guesses:
    """Guesses of the states of consecutive steps, [B, A, H] each.

    head: rows [M, H] of a step -> [M, Vd].
    """
    tokens, predicted, counted = [], [], []
    answer = window.batch.starts[:, None]
    for step, made in enumerate(states):
        place = window.index + 2 + step
        # The root of a draft is a token of the answer.
        count = (window.index + 1 >= answer) & (place < window.batch.lengths[:, None])
        with torch.autocast(made.device.type, enabled=False):
            # Logits in half precision tie, and a tie is a coin tossed on a guess.
            wide = made[count].to(torch.promote_types(made.dtype, torch.float32))
            rows = head(wide, step).topk(top, dim=-1).indices
        guess = torch.full((*count.shape, top), -1, device=rows.device)
        guess[count] = frozen.target_tokens(rows)
        tokens.append(guess)
        predicted.append(window.predicted(step))
        counted.append(count)
    return Guesses(
        tokens=torch.stack(tokens, dim=2),
        predicted=torch.stack(predicted, dim=2),
        counted=torch.stack(counted, dim=2),
        # Pair t predicts token t + 2; the first one drafted follows token `start`.
        first=window.batch.starts - 1 - window.index[:, 0],
    )


@dataclass(kw_only=True)
class Tally:
    """Sums over held-out answers. By depth: opportunities, right first guesses, right among the
    best few; by category: tokens emitted by the steps of a simulated chain, and the steps."""

    depth: int
    counted: list[int]
    right: list[int]
    among: list[int]
    emitted: dict[str, int]
    steps: dict[str, int]

    @classmethod
    def empty(cls, depth: int) -> Tally:
        """Nothing seen."""
        zeros = [0] * depth
        return cls(
            depth=depth, counted=[*zeros], right=[*zeros], among=[*zeros], emitted={}, steps={}
        )

    def add(self, guesses: Guesses, categories: Iterable[str]) -> None:
        """Count one batch."""
        same = guesses.tokens == guesses.predicted[..., None]
        right = (same[..., 0] & guesses.counted).cpu()
        among = (same.any(-1) & guesses.counted).cpu()
        counted = guesses.counted.cpu()
        for depth in range(counted.shape[-1]):  # Medusa may have fewer heads
            self.counted[depth] += int(counted[:, :, depth].sum())
            self.right[depth] += int(right[:, :, depth].sum())
            self.among[depth] += int(among[:, :, depth].sum())
        lengths = right.int().cumprod(-1).sum(-1).tolist()  # [B, A] accepted from each place
        room = counted[:, :, 0].tolist()
        for row, category in enumerate(categories):
            self._walk(lengths[row], room[row], int(guesses.first[row]), category)

    def _walk(self, lengths: list[int], room: list[bool], at: int, category: str) -> None:
        """One answer as a greedy chain would decode it: the text is the target's own."""
        while at < len(lengths) and room[at]:
            # The bonus token is part of the text only where the text goes on.
            step = min(lengths[at] + 1, sum(room[at:]))
            self.emitted[category] = self.emitted.get(category, 0) + step
            self.steps[category] = self.steps.get(category, 0) + 1
            at += step

    def numbers(self) -> dict[str, float]:
        """acceptance_length of the chain, and accuracies by depth (1 is the first drafted)."""
        found = {"acceptance_length": sum(self.emitted.values()) / max(1, sum(self.steps.values()))}
        for depth, count in enumerate(self.counted):
            if not count:
                break
            found[f"top1_depth{depth + 1}"] = self.right[depth] / count
            found[f"top_depth{depth + 1}"] = self.among[depth] / count
        return found

    def by_category(self) -> dict[str, float]:
        """acceptance_length of the chain."""
        return {name: self.emitted[name] / self.steps[name] for name in sorted(self.steps)}
