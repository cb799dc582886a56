"""EAGLE-1/2's head: it predicts features, which the target's own head reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from specframe.heads.eagle_export import save_eagle
from specframe.heads.eagle_file import load_eagle
from specframe.heads.eagle_net import EagleNet, EagleOptions
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


@RECIPES.register("eagle")
class EagleRecipe(Recipe):
    """loss = sum_i decay^i (regression * SmoothL1 + soft * CE + top_weight * CE over the top)
    over unrolled steps i, normalised by the sum of decay^i; noise is uniform on the true features.

    soft: CE against the target's law. vocabulary: the loss (and validation) read these most
    frequent tokens alone, for speed and for FR-Spec; null reads all. negatives: those of them that
    the CE norms over beside the likely ones, drawn anew every step; null for all.
    Papers: EAGLE, arXiv 2401.15077; HASS, arXiv 2408.15766 (`unroll` 3, `top` 10).
    """

    drafter = "eagle"

    def __init__(
        self,
        *,
        unroll: Annotated[int, Range(1, 16)],
        decay: Annotated[float, Range(0.0, 1.0, low_open=True)],
        regression: Weight,
        soft: Weight,
        top: Annotated[int, Range(0, 1000)],
        top_weight: Weight,
        noise: Weight,
        prompt_weight: Weight,
        vocabulary: Annotated[int, Range(1, None)] | None,
        min_coverage: Annotated[float, Range(0.0, 1.0)],
        negatives: Annotated[int, Range(1, None)] | None,
        intermediate: Annotated[int, Range(1, None)] | None,
    ) -> None:
        self.unroll, self.decay = unroll, decay
        self.regression, self.soft = regression, soft
        self.top, self.top_weight = top, top_weight
        self.noise, self.prompt_weight = noise, prompt_weight
        self.vocabulary, self.min_coverage = vocabulary, min_coverage
        self.negatives, self.intermediate = negatives, intermediate
        self._unit = 1.0  # factor that brings embeddings to an rms of 1

    def taps(self, target: Target) -> tuple[str, ...]:
        return (FINAL,)

    def make(self, target: Target, ids: Tensor | None) -> EagleNet:
        shape = shape_for(target, intermediate=self.intermediate)
        # The official trainer always has fc.bias.
        net = EagleNet(EagleOptions(shape=shape, bias=True, vocab_size=target.vocab_size))
        initialise(net)
        every = target.embed(torch.arange(target.vocab_size, device=target.device))
        self._unit = float(every.float().square().mean().rsqrt())
        return net

    @torch.no_grad()
    def started(self, net: EagleNet) -> None:
        net.fc.weight[:, : net.hidden_size] /= self._unit

    def _embed(self, frozen: FrozenTarget) -> Callable[[Tensor], Tensor]:
        """Embeddings scaled to an rms of 1.

        Most embeddings are far smaller than features. AdamW's steps do not depend on the scale of
        their inputs, so `fc` would move too little where it reads embeddings as they are.
        """
        return lambda tokens: frozen.embed(tokens) * self._unit

    def load(self, path: str) -> EagleNet:
        return load_eagle(path)

    def losses(
        self, net: EagleNet, frozen: FrozenTarget, batch: Batch, progress: float
    ) -> dict[str, Tensor]:
        features = batch.features[FINAL]
        window = UnrollWindow.of(batch)
        laws = TeacherLaws.of(
            batch,
            frozen,
            features,
            soft=self.soft,
            top=(self.top, self.top_weight),
            negatives=self.negatives,
        )
        noise = (torch.rand_like(features) - 0.5) * 2 * self.noise
        states = unroll(net, self._embed(frozen), window, features + noise, steps=self.unroll)
        terms: list[Tensor] = []
        parts: dict[str, Tensor] = {}
        for step, predicted in enumerate(states):
            step_parts = self._step(predicted, step, window, laws, frozen)
            terms.append(step_parts.pop("loss"))
            parts |= {f"{name}_{step + 1}": value.detach() for name, value in step_parts.items()}
        return {"loss": losses.discounted(terms, self.decay), **parts}

    def _step(
        self,
        predicted: Tensor,
        step: int,
        window: UnrollWindow,
        laws: TeacherLaws,
        frozen: FrozenTarget,
    ) -> dict[str, Tensor]:
        """The loss of one unrolled step and its parts."""
        at = StepRows.of(window, step, laws, frozen)
        states = predicted[at.chosen].float()
        true = window.batch.features[FINAL][at.sequence, at.feature].float()
        parts = {"regression": losses.weighted_mean(losses.regression(states, true), at.weight)}
        loss = self.regression * parts["regression"]
        if self.soft or self.top_weight:
            parts["distillation"] = target_head_loss(predicted[at.chosen], at, laws, frozen)
            loss = loss + parts["distillation"]
        return {"loss": loss, **parts}

    @torch.no_grad()
    def guesses(
        self, net: EagleNet, frozen: FrozenTarget, batch: Batch, *, depth: int, top: int
    ) -> Guesses:
        window = UnrollWindow.of(batch)
        states = unroll(net, self._embed(frozen), window, batch.features[FINAL], steps=depth)
        return guesses_of(states, window, lambda rows, _: frozen.head(rows), frozen, top=top)

    @torch.no_grad()
    def export(self, net: EagleNet, folder: Path, *, target: Target) -> None:
        net.fc.weight[:, : net.hidden_size] *= self._unit
        save_eagle(net, folder, verifier=target.name)
