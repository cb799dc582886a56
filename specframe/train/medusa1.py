"""Medusa-1's heads: the trunk is frozen, each head guesses one token further."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from specframe.heads.medusa_file import load_medusa, save_medusa
from specframe.heads.medusa_net import MedusaNet, MedusaOptions
from specframe.registry import Range
from specframe.target.base import Target
from specframe.train.base import FINAL, RECIPES, FrozenTarget, Guesses, Recipe, text_config
from specframe.training import losses
from specframe.training.batches import Batch
from specframe.training.chains import StepRows, guesses_of, target_head_loss
from specframe.training.teacher_laws import TeacherLaws
from specframe.training.unroll import UnrollWindow

Weight = Annotated[float, Range(0.0, None)]


@RECIPES.register("medusa1")
class Medusa1Recipe(Recipe):
    """loss = sum_k decay^k (hard * CE(token) + soft * CE(target's law)) over heads k = 1 .. K,
    normalised by the sum of decay^k; head k guesses the token k after the root.

    heads, layers: how many, and residual blocks in each. own_head: each head has an output matrix,
    which starts as the target's rows; else all use the target's. vocabulary: the tokens that heads
    may propose. negatives: those of them that the CE norms over beside the likely ones, drawn anew
    every step; null for all. The blocks start as the identity, bias included: a fresh head is the
    target's own.
    Paper: Medusa, arXiv 2401.10774 (hard 1, soft 0, decay 0.8).
    """

    drafter = "medusa"

    def __init__(
        self,
        *,
        heads: Annotated[int, Range(1, 16)],
        layers: Annotated[int, Range(1, 8)],
        own_head: bool,
        decay: Annotated[float, Range(0.0, 1.0, low_open=True)],
        hard: Weight,
        soft: Weight,
        prompt_weight: Weight,
        vocabulary: Annotated[int, Range(1, None)] | None,
        min_coverage: Annotated[float, Range(0.0, 1.0)],
        negatives: Annotated[int, Range(1, None)] | None,
    ) -> None:
        self.heads, self.layers, self.own_head = heads, layers, own_head
        self.decay, self.hard, self.soft = decay, hard, soft
        self.prompt_weight = prompt_weight
        self.vocabulary, self.min_coverage = vocabulary, min_coverage
        self.negatives = negatives

    def taps(self, target: Target) -> tuple[str, ...]:
        return (FINAL,)

    def make(self, target: Target, ids: Tensor | None) -> MedusaNet:
        rows = target.vocab_size if ids is None else len(ids)
        net = MedusaNet(
            MedusaOptions(
                hidden=text_config(target).hidden_size,
                heads=self.heads,
                layers=self.layers,
                rows=rows if self.own_head else 0,
                mapped=0 if ids is None else len(ids),
            )
        )
        if net.token_map is not None and ids is not None:
            net.token_map.copy_(ids)
        if self.own_head:
            table = target.model.get_output_embeddings().weight  # type: ignore[attr-defined]
            rows_of_ids = table if ids is None else table[ids.to(table.device)]
            with torch.no_grad():
                for head in range(self.heads):
                    net.output(head).copy_(rows_of_ids)
        return net

    def load(self, path: str) -> MedusaNet:
        return load_medusa(path)

    def losses(
        self, net: MedusaNet, frozen: FrozenTarget, batch: Batch, progress: float
    ) -> dict[str, Tensor]:
        return self.losses_on(net, frozen, batch, batch.features[FINAL])

    def losses_on(
        self, net: MedusaNet, frozen: FrozenTarget, batch: Batch, features: Tensor
    ) -> dict[str, Tensor]:
        """The loss of heads on features [B, L, H], by the laws of the batch's own features."""
        window = UnrollWindow.of(batch)
        laws = TeacherLaws.of(
            batch, frozen, batch.features[FINAL], soft=self.soft, negatives=self.negatives
        )
        if self.hard:
            laws = laws.with_followed_token(batch, frozen, self.hard)
        terms: list[Tensor] = []
        for step, states in enumerate(net(window.rows(features))):
            at = StepRows.of(window, step, laws, frozen)
            terms.append(self._head_loss(net, step, states[at.chosen], at, laws, frozen))
        parts = {f"head_{step}": term.detach() for step, term in enumerate(terms, start=1)}
        return {"loss": losses.discounted(terms, self.decay), **parts}

    def _head_loss(
        self,
        net: MedusaNet,
        step: int,
        states: Tensor,
        at: StepRows,
        laws: TeacherLaws,
        frozen: FrozenTarget,
    ) -> Tensor:
        """The loss of the head that guesses `step` tokens further."""
        if not self.own_head:
            return target_head_loss(states, at, laws, frozen)
        logits = laws.logits(states, net.output(step))
        rows = losses.cross_entropy(logits, laws.shares[at.place])
        return losses.weighted_mean(rows, at.weight * at.inside)

    def _logits(self, net: MedusaNet, frozen: FrozenTarget, step: int, states: Tensor) -> Tensor:
        return functional.linear(states, net.output(step)) if self.own_head else frozen.head(states)

    @torch.no_grad()
    def guesses(
        self, net: MedusaNet, frozen: FrozenTarget, batch: Batch, *, depth: int, top: int
    ) -> Guesses:
        return self.guesses_on(net, frozen, batch, batch.features[FINAL], depth, top)

    def guesses_on(
        self,
        net: MedusaNet,
        frozen: FrozenTarget,
        batch: Batch,
        features: Tensor,
        depth: int,
        top: int,
    ) -> Guesses:
        """Guesses of the first `depth` heads on features [B, L, H], `top` of each."""
        window = UnrollWindow.of(batch)
        states = net(window.rows(features))[:depth]
        return guesses_of(
            states,
            window,
            lambda rows, step: self._logits(net, frozen, step, rows),
            frozen,
            top=top,
        )

    def export(self, net: MedusaNet, folder: Path, *, target: Target) -> None:
        save_medusa(net, folder, base=target.name)
