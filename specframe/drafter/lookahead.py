"""Lookahead decoding: the target guesses ahead in rows that ride along in the verify pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from specframe.drafter.base import DRAFTERS, Continuation, Retrieval, Traits
from specframe.lookup.lookahead_window import LookaheadWindow
from specframe.lookup.ngram_pool import NgramPool
from specframe.records import Context, StepRecord
from specframe.registry import Range
from specframe.types import Budget, Draft, Needs, TargetOutput


@DRAFTERS.register("lookahead")
class Lookahead(Retrieval):
    """Proposes up to G n-grams that start at the root, from a pool that the target fills.

    A window of N - 1 levels of W tokens rides in each verify pass as auxiliary rows; the root is
    the first token of level 0. Row (l, i), at position root + l + i, sees the prefix, level 0 up
    to i, and column i of the levels between, so its output goes on with that column. The outputs of
    the last level end W new n-grams (level 0's token, then N - 1 more) and become the last level
    as the others move up: one token a step, however many are accepted. The pool lives as long as
    the sequence and keeps the G newest n-grams of each first token.
    Level 0 starts with tokens spread over the prompt; the first N - 2 passes fill the others.
    pool_from_prompt: the n-grams of the prompt are in the pool from the start.

    Equation: rows of a pass = (N - 1) W + nodes of the trie <= (N - 1) (W + G), root included;
    of them (N - 1) W - 1 are auxiliary and count in tree.max_nodes.
    Lossless under every lossless rule (placed, no law); an n-gram accepted in full is followed by
    a bonus token, which the published code gives away. Needs auxiliary rows.
    Draft forwards per step: none. Target forwards per step: 1.
    Paper: Fu et al., arXiv 2402.02057: up to 1.8x on MT-bench; Spec-Bench (arXiv 2401.07851) has
    1.27x and acceptance length 1.66 for (N, W, G) = (5, 7, 7), Vicuna-7B on an A100.
    """

    traits = Traits(native=True, learns="from the rows of every pass, which fill its pool")
    max_trie_nodes: ClassVar[int] = 1024  # every guess whole, whatever the numbers

    def __init__(
        self,
        *,
        window: Annotated[int, Range(1, 64)],
        ngram: Annotated[int, Range(3, 16)],
        guesses: Annotated[int, Range(1, 64)],
        pool_from_prompt: bool,
    ) -> None:
        needs = Needs(aux_rows=(ngram - 1) * window - 1)
        self.traits = replace(self.traits, needs=needs)
        self.window = window
        self.ngram = ngram
        self.guesses = guesses
        self.pool_from_prompt = pool_from_prompt

    def begin(self, context: Context, out: TargetOutput) -> None:
        super().begin(context, out)
        self._pool = NgramPool(size=self.guesses)
        prompt = context.tokens[: context.prompt_length]
        self._ahead = LookaheadWindow(width=self.window, ngram=self.ngram, text=prompt)
        if self.pool_from_prompt:
            for start in range(len(context) - self.ngram + 1):
                self._pool.add(context.tokens[start : start + self.ngram])

    def continuations(self) -> Sequence[Continuation]:
        return [Continuation(one) for one in self._pool.after(self.context.tokens[-1])]

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        if budget.depth < 1 or self._ahead.num_rows == 0:
            return draft  # no step is left that could use what the window finds
        rows = self._ahead.rows(
            position=len(self.context) - 1,
            num_rows=draft.num_rows,
            seen=1,
            device=draft.tokens.device,
        )
        return replace(draft, aux=rows)

    def readback(self, draft: Draft, out: TargetOutput) -> Tensor | None:
        """[W] what the last level predicts; the root, which is no auxiliary row, predicts too."""
        found = out.logits[:0] if out.aux_logits is None else out.aux_logits[-self.window :]
        if draft.aux is None and self._ahead.num_rows:
            return None
        if len(found) < self.window:
            found = torch.cat([out.logits[:1], found])
        return found.argmax(-1)

    def observe(self, record: StepRecord) -> None:
        if not record.readback:  # the window did not ride along
            return
        root = self.context.tokens[record.length_before - 1]
        for ngram in self._ahead.advance(root, record.readback):
            self._pool.add(ngram)
