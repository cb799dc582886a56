"""EAGLE-3's head: fused taps, an own head over frequent tokens, no feature regression."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from specframe.heads.eagle_export import save_eagle
from specframe.heads.eagle_file import load_eagle3
from specframe.heads.eagle_net import Eagle3Net, Eagle3Options
from specframe.heads.fitting import fused_layers
from specframe.registry import Range
from specframe.target.base import Target
from specframe.train.base import FINAL, RECIPES, FrozenTarget, Guesses, Recipe
from specframe.training import losses
from specframe.training.batches import Batch
from specframe.training.chains import StepRows, guesses_of
from specframe.training.head_shape import initialise, shape_for
from specframe.training.teacher_laws import TeacherLaws
from specframe.training.unroll import UnrollWindow, unroll


@RECIPES.register("eagle3")
class Eagle3Recipe(Recipe):
    """loss = sum_i decay^i CE(target's law over the draft vocabulary, own head) over unrolled steps
    i, normalised by the sum of decay^i; no feature regression.

    vocabulary: the most frequent tokens, those that the head has rows for. negatives: those of them
    that the CE norms over beside the likely ones, drawn anew every step; null for all. layers:
    blocks whose input is fused, null for 2, L // 2 and L - 3. own_rows: the head starts from the
    target's rows, else from noise as in the official trainer.
    Paper: EAGLE-3, arXiv 2503.01840.
    """

    drafter = "eagle3"
    needs_vocabulary = True

    def __init__(
        self,
        *,
        unroll: Annotated[int, Range(1, 16)],
        decay: Annotated[float, Range(0.0, 1.0, low_open=True)],
        layers: list[int] | None,
        own_rows: bool,
        prompt_weight: Annotated[float, Range(0.0, None)],
        vocabulary: Annotated[int, Range(1, None)],
        min_coverage: Annotated[float, Range(0.0, 1.0)],
        negatives: Annotated[int, Range(1, None)] | None,
        intermediate: Annotated[int, Range(1, None)] | None,
    ) -> None:
        self.unroll, self.decay, self.layers = unroll, decay, layers
        self.own_rows, self.prompt_weight = own_rows, prompt_weight
        self.vocabulary, self.min_coverage = vocabulary, min_coverage
        self.negatives, self.intermediate = negatives, intermediate
        self._fused: tuple[str, ...] = ()

    def taps(self, target: Target) -> tuple[str, ...]:
        shape = shape_for(target, intermediate=self.intermediate)
        options = Eagle3Options(
            shape=shape,
            draft_vocab=1,
            feature_size=shape.hidden,
            features=len(self.layers or (0, 0, 0)),
        )
        with torch.device("meta"):
            layers = fused_layers(self.layers, Eagle3Net(options), target)
        self._fused = tuple(f"resid:{layer}" for layer in layers)
        return (*self._fused, FINAL)

    def make(self, target: Target, ids: Tensor | None) -> Eagle3Net:
        assert ids is not None, "the draft vocabulary is chosen before the head is made"
        fused = self.taps(target)[:-1]
        shape = shape_for(target, intermediate=self.intermediate)
        net = Eagle3Net(
            Eagle3Options(
                shape=shape,
                draft_vocab=len(ids),
                features=len(fused),
                feature_size=shape.hidden,
                vocab_size=target.vocab_size,
                taps=tuple(int(name.removeprefix("resid:")) for name in fused),
            )
        )
        initialise(net)
        assert net.d2t is not None and net.t2d is not None
        net.d2t.copy_(ids.cpu() - torch.arange(len(ids)))
        net.t2d.copy_(torch.isin(torch.arange(target.vocab_size), ids.cpu()))
        if self.own_rows:
            table = target.model.get_output_embeddings().weight  # type: ignore[attr-defined]
            with torch.no_grad():
                net.lm_head.weight.copy_(table[ids.to(table.device)])
        return net

    def load(self, path: str) -> Eagle3Net:
        return load_eagle3(path)

    def losses(
        self, net: Eagle3Net, frozen: FrozenTarget, batch: Batch, progress: float
    ) -> dict[str, Tensor]:
        window = UnrollWindow.of(batch)
        laws = TeacherLaws.of(batch, frozen, batch.features[FINAL], negatives=self.negatives)
        states = unroll(net, frozen.embed, window, self._states(net, batch), steps=self.unroll)
        terms: list[Tensor] = []
        for step, predicted in enumerate(states):
            at = StepRows.of(window, step, laws, frozen)
            logits = laws.logits(net.normed(predicted[at.chosen]), net.lm_head.weight)
            rows = losses.cross_entropy(logits, laws.shares[at.place])
            terms.append(losses.weighted_mean(rows, at.weight * at.inside))
        parts = {f"distillation_{step}": term.detach() for step, term in enumerate(terms, start=1)}
        return {"loss": losses.discounted(terms, self.decay), **parts}

    @torch.no_grad()
    def guesses(
        self, net: Eagle3Net, frozen: FrozenTarget, batch: Batch, *, depth: int, top: int
    ) -> Guesses:
        window = UnrollWindow.of(batch)
        states = unroll(net, frozen.embed, window, self._states(net, batch), steps=depth)
        return guesses_of(states, window, lambda rows, _: net.logits(rows), frozen, top=top)

    def export(self, net: Eagle3Net, folder: Path, *, target: Target) -> None:
        save_eagle(net, folder, verifier=target.name)

    def _states(self, net: Eagle3Net, batch: Batch) -> Tensor:
        fused = [states for name, states in batch.features.items() if name != FINAL]
        return net.fuse(torch.cat(fused, dim=-1))
