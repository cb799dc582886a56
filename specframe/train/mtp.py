"""A module of multi-token prediction, trained for a target that is frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor

from specframe.heads.mtp_file import load_mtp, save_mtp
from specframe.heads.mtp_net import MTPNet, MTPOptions
from specframe.registry import Range
from specframe.target.base import Target
from specframe.train.base import FINAL, RECIPES, FrozenTarget, Guesses, Recipe
from specframe.training import losses
from specframe.training.batches import Batch
from specframe.training.chains import StepRows, guesses_of, target_head_loss
from specframe.training.head_shape import initialise, shape_for
from specframe.training.teacher_laws import TeacherLaws
from specframe.training.unroll import UnrollWindow, unroll

Weight = Annotated[float, Range(0.0, None)]
_BEFORE = "final_prenorm"  # the tap before the norm of the target's head


@RECIPES.register("mtp")
class MTPRecipe(Recipe):
    """loss = sum_i decay^i (hard * CE(x(t+2+i)) + soft * CE(target's law)) over unrolled steps i,
    normalised by the sum of decay^i; one module, which is fed with its own states from step 1 on.

    hard: CE against the token after the next. feature, recycle: the state that is read, and that
    is handed on: post_norm or pre_norm. vocabulary: the loss (and validation) read these most
    frequent tokens alone, for speed and for FR-Spec; null reads all. negatives: those of them that
    the CE norms over beside the likely ones, drawn anew every step; null for all.
    Papers: DeepSeek-V3, arXiv 2412.19437 (`unroll` 1); FastMTP, arXiv 2509.18362 (`decay` 0.6).
    """

    drafter = "mtp"

    def __init__(
        self,
        *,
        unroll: Annotated[int, Range(1, 16)],
        decay: Annotated[float, Range(0.0, 1.0, low_open=True)],
        hard: Weight,
        soft: Weight,
        feature: Literal["post_norm", "pre_norm"],
        recycle: Literal["post_norm", "pre_norm"],
        prompt_weight: Weight,
        vocabulary: Annotated[int, Range(1, None)] | None,
        min_coverage: Annotated[float, Range(0.0, 1.0)],
        negatives: Annotated[int, Range(1, None)] | None,
        intermediate: Annotated[int, Range(1, None)] | None,
    ) -> None:
        self.unroll, self.decay = unroll, decay
        self.hard, self.soft = hard, soft
        self.feature, self.recycle = feature, recycle
        self.prompt_weight = prompt_weight
        self.vocabulary, self.min_coverage = vocabulary, min_coverage
        self.negatives, self.intermediate = negatives, intermediate

    def taps(self, target: Target) -> tuple[str, ...]:
        return (FINAL,) if self.feature == "post_norm" else (_BEFORE, FINAL)

    def make(self, target: Target, ids: Tensor | None) -> MTPNet:
        options = MTPOptions(
            shape=shape_for(target, intermediate=self.intermediate),
            first=target.num_layers,
            vocab_size=target.vocab_size,
            feature=self.feature,
            recycle=self.recycle,
        )
        net = MTPNet(options)
        initialise(net)
        return net

    def load(self, path: str) -> MTPNet:
        """Without the copies of the target's tables, which stay the target's."""
        net = load_mtp(path)
        for index in range(net.options.modules):
            net.module(index).embed_tokens = net.module(index).shared_head.head = None
        return net

    def losses(
        self, net: MTPNet, frozen: FrozenTarget, batch: Batch, progress: float
    ) -> dict[str, Tensor]:
        window, features = UnrollWindow.of(batch), batch.features[FINAL]
        laws = TeacherLaws.of(batch, frozen, features, soft=self.soft, negatives=self.negatives)
        if self.hard:
            laws = laws.with_followed_token(batch, frozen, self.hard)
        states = unroll(net, frozen.embed, window, self._states(batch), steps=self.unroll)
        terms: list[Tensor] = []
        for step, predicted in enumerate(states):
            at = StepRows.of(window, step, laws, frozen)
            terms.append(target_head_loss(net.normed(predicted[at.chosen]), at, laws, frozen))
        parts = {f"token_{step}": term.detach() for step, term in enumerate(terms, start=1)}
        return {"loss": losses.discounted(terms, self.decay), **parts}

    @torch.no_grad()
    def guesses(
        self, net: MTPNet, frozen: FrozenTarget, batch: Batch, *, depth: int, top: int
    ) -> Guesses:
        window = UnrollWindow.of(batch)
        states = unroll(net, frozen.embed, window, self._states(batch), steps=depth)
        return guesses_of(
            states, window, lambda rows, _: frozen.head(net.normed(rows)), frozen, top=top
        )

    def export(self, net: MTPNet, folder: Path, *, target: Target) -> None:
        save_mtp(net, folder)

    def _states(self, batch: Batch) -> Tensor:
        return batch.features[FINAL if self.feature == "post_norm" else _BEFORE]
