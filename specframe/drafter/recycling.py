"""Token recycling: what the target nearly said after a token is proposed when the token returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.records import Context, StepRecord
from specframe.registry import Range
from specframe.target.base import Target
from specframe.types import Frontier, Needs, Proposal, TargetOutput

_TAP = "final_postnorm"
_CHUNK = 128  # prompt rows that go through the head at a time; bounds their logits


@DRAFTERS.register("recycling")
class Recycling(Drafter):
    """Proposes under each node its token's row of a matrix M [V, width], best first.

    M[token] is the top `width` of the logits of the last verified row that held the token, whether
    the row was accepted or not; among rows of one pass the last one counts. M starts empty: a token
    without a row gets no children. from_prompt: the rows of the prompt fill M, too, at the cost of
    the output head once for each of its distinct tokens. keep: M outlives the prompt; what an
    answer started with is reported (cold, warm).

    Equation: M[t_i] <- argtop_width(logits_i) for all live rows i of the pass.
    Meant for tree=static with a calibrated shape of some 80 nodes (80 to a pass in the paper).
    Lossless under every lossless rule (placed, no law). Needs: final-normed states of the prompt,
    if from_prompt. Draft forwards per step: none. Target forwards per step: 1.
    Paper: Luo et al., arXiv 2408.08696: about 2x with under 2 MB, no training; Spec-Bench (arXiv
    2401.07851) has 2.22x for Vicuna-7B on an A100.
    """

    traits = Traits(learns="from the rows of every pass, which fill its table")

    def __init__(
        self,
        *,
        width: Annotated[int, Range(1, 64)],
        from_prompt: bool,
        keep: bool,
        target: Target,
    ) -> None:
        self.traits = replace(self.traits, needs=Needs(taps=(_TAP,) if from_prompt else ()))
        self.warm: bool | None = False if keep else None
        self.keep = keep
        self._head = target.head
        self._spare = target.vocab_size  # one more row takes what is to be forgotten
        shape = (target.vocab_size + 1, min(width, target.vocab_size))
        self._matrix = torch.full(shape, -1, dtype=torch.int32, device=target.device)
        self._used = False

    def begin(self, context: Context, out: TargetOutput) -> None:
        if self.keep:
            self.warm = self._used
        else:
            self._matrix.fill_(-1)
        self._used = True
        prompt = context.tokens[: context.prompt_length]
        if _TAP in out.taps:
            self._recycle_prompt(prompt, out.taps[_TAP])
        else:
            self._store(context.ids[len(prompt) - 1 : len(prompt)], out.logits)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        rows = torch.where(frontier.alive, frontier.tokens, self._spare)
        return [Proposal(candidates=self._matrix[rows].long(), source="recycling")]

    def observe(self, record: StepRecord) -> None:
        draft = record.draft
        tokens = torch.where(draft.alive, draft.tokens, self._spare)
        # The order of writes to one row is undefined on a device, so only the last one is made.
        repeated = (tokens[:, None] == tokens).triu(1).any(1)
        self._store(torch.where(repeated, self._spare, tokens), record.out.logits)

    def remembered(self) -> Any:
        return (self._matrix.clone(), self._used) if self.keep else None

    def recall(self, memory: Any) -> None:
        matrix, self._used = memory
        self._matrix.copy_(matrix)

    def _recycle_prompt(self, prompt: Sequence[int], states: Tensor) -> None:
        """states [T, H] of the prompt's rows; the last place of each token counts."""
        places = list({token: place for place, token in enumerate(prompt)}.values())
        for start in range(0, len(places), _CHUNK):
            chunk = places[start : start + _CHUNK]
            index = torch.tensor(chunk, device=states.device)
            tokens = torch.tensor([prompt[place] for place in chunk], device=self._matrix.device)
            self._store(tokens, self._head(states.index_select(0, index)))

    def _store(self, tokens: Tensor, logits: Tensor) -> None:
        """Rows tokens [R] of the matrix from logits [R, V]."""
        best = logits.topk(self._matrix.shape[1], dim=-1).indices
        self._matrix.index_copy_(0, tokens, best.to(self._matrix))
