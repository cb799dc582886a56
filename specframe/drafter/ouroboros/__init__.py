"""Ouroboros: a draft model that writes by lookahead, and phrases that lengthen what it wrote."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.drafter.base import DRAFTERS, Continuation, Retrieval, Traits
from specframe.drafter.ouroboros.first_layers import shortened
from specframe.drafter.ouroboros.writer import Writer
from specframe.drafting.vocabulary import check_vocabulary
from specframe.lookup.foresight import Prospect
from specframe.lookup.ngram_pool import NgramPool, Phrase
from specframe.records import Context, StepRecord
from specframe.registry import Range
from specframe.target.base import Target
from specframe.types import Budget, Draft, Needs, TargetOutput

_TRUST = ", or set drafter.trust_vocabulary=true if you know that the ids agree"


@DRAFTERS.register("ouroboros")
class Ouroboros(Retrieval):
    """Proposes the draft model's greedy text, and after its last token K phrases as branches.

    Drafting: the draft model writes `draft_tokens` by lookahead of its own (a window of W tokens,
    n-grams of N tokens, W guesses), so that a pass of it may give several. A pool holds the newest
    n-grams of each first token: those of the window and what the target's pass shows.
    Lengthening: the K newest phrases of N - 1 tokens that follow the last drafted token.
    Reuse, from the target's likeliest token at *all* rows: under a rejected drafted token, its
    continuation as far as the draft agrees becomes a phrase if it is N - 1 long; the K phrases are
    put right in their places. keep_pool: the pool outlives the prompt; what an answer started with
    is reported (cold, warm).
    layers: the first ones of the draft model alone; auto: all, or half if it is the target itself.

    Equation: rows of a pass <= 1 + draft_tokens + K (N - 1); of a draft pass, 2 W (N - 1).
    Meant for tree=native; another tree takes as much of the branches as fits its shape.
    Lossless under every lossless rule (placed, no law). Needs a draft model with the target's
    vocabulary and positions. Target forwards per step: 1. Draft forwards: at most draft_tokens,
    each with a host read (host_reads), and one for the prompt.
    Paper: Zhao et al., arXiv 2402.13720: up to 2.8x over speculative decoding and 3.9x over plain
    decoding (Yi-34B with 6B, A100, greedy); its code takes draft_tokens 12, W 20, N 7 and K 3 on
    HumanEval, gives no bonus after a whole phrase, and does not sample.
    """

    traits = Traits(
        needs=Needs(own_cache=True),
        native=True,
        learns="from the rows of every pass, which fill its pool",
    )
    max_trie_nodes: ClassVar[int] = 1024  # every phrase whole, whatever the numbers

    def __init__(
        self,
        *,
        model: Target,
        target: Target,
        new_cache: Callable[[], CacheManager],
        layers: Annotated[int, Range(1, None)] | Literal["auto"] | None,
        trust_vocabulary: bool,
        draft_tokens: Annotated[int, Range(1, 64)],
        window: Annotated[int, Range(0, 64)],
        ngram: Annotated[int, Range(3, 16)],
        phrases: Annotated[int, Range(0, 64)],
        keep_pool: bool,
    ) -> None:
        if not trust_vocabulary:
            check_vocabulary(model, target, way_out=_TRUST)
        self.traits = replace(
            self.traits,
            host_reads=draft_tokens,  # the most there can be
            max_positions=model.gives.max_positions,
        )
        self.warm: bool | None = False if keep_pool else None
        self.draft_tokens = draft_tokens
        self.ngram = ngram
        self.phrases = phrases
        self.keep_pool = keep_pool
        self._pool = NgramPool(size=max(window, phrases))
        self._writer = Writer(
            model=shortened(model, target, layers),
            cache=new_cache(),
            vocab=min(model.vocab_size, target.vocab_size),
            width=window,
            ngram=ngram,
        )
        self._forget()

    def begin(self, context: Context, out: TargetOutput) -> None:
        super().begin(context, out)
        if self.keep_pool:
            self.warm = len(self._pool) > 0
        else:
            self._pool = NgramPool(size=self._pool.size)
        self._writer.begin(context, self._pool, ahead=self.draft_tokens)
        self._forget()

    def prospects(self) -> Sequence[Prospect]:
        # Its phrases are there once a draft is written.
        return [Prospect(source="ouroboros", expand=self.expand)]

    def continuations(self) -> Sequence[Continuation]:
        return self._proposed(self.draft_tokens)

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        found = self._proposed(min(self.draft_tokens, budget.depth, budget.rows - 1))
        return [one.tokens[: budget.depth] for one in found]

    def readback(self, draft: Draft, out: TargetOutput) -> Tensor | None:
        """[3 N] tokens, parents (-2 for dead rows) and the target's likeliest tokens."""
        if not self._written:
            return None
        parents = torch.where(draft.alive, draft.parents, -2)
        return torch.cat([draft.tokens, parents, out.logits.argmax(-1)])

    def observe(self, record: StepRecord) -> None:
        pairs = zip(self._written, record.tokens, strict=False)
        agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # The new root is fed at the next step, whoever wrote it.
        self._writer.truncate(min(record.length_before + agreed, len(self.context) - 1))
        if record.readback:
            self._learn(Verified(record.readback), agreed)
        self._forget()

    def truncate(self, length: int) -> None:
        self._writer.truncate(length - 1)
        self._forget()

    def remembered(self) -> Any:
        return copy.deepcopy(self._pool) if self.keep_pool else None

    def recall(self, memory: Any) -> None:
        self._pool = copy.deepcopy(memory)

    def _forget(self) -> None:
        self._written: list[int] = []
        self._tails: list[Phrase] = []

    def _proposed(self, count: int) -> list[Continuation]:
        if (limit := self.traits.max_positions) is not None:
            count = min(count, limit - len(self.context) + 1)
        if not self._written:  # a router asks what it has before it lets it draft
            self._written = self._writer.write(self.context.tokens, count)
            self._tails = self._pool.after(self._written[-1])[: self.phrases]
        return [Continuation([*self._written, *tail]) for tail in self._tails or [()]]

    def _learn(self, verified: Verified, agreed: int) -> None:
        written, said = self._written, verified.said
        rows = verified.follow(0, written)
        if len(rows) == len(written):
            better = {}
            for tail in self._tails:
                below = [rows[-1], *verified.follow(rows[-1], tail[:-1])]
                if len(below) == len(tail):
                    better[tail] = tuple(said[row] for row in below)
            self._pool.correct(written[-1], better)
        for start in range(agreed, len(rows)):
            ngram = [written[start]]
            for place in range(start, len(rows)):
                ngram.append(said[rows[place]])
                if len(ngram) == self.ngram:
                    self._pool.add(ngram)
                    break
                if written[place + 1 : place + 2] != ngram[-1:]:
                    break


class Verified:
    """A verified tree on the host, from `readback`: what the target said after each row."""

    def __init__(self, values: Sequence[int]) -> None:
        size = len(values) // 3
        tokens, parents = values[:size], values[size : 2 * size]
        self.said = values[2 * size :]
        self._child = {
            pair: row for row, pair in enumerate(zip(parents, tokens, strict=True)) if pair[0] >= 0
        }

    def follow(self, row: int, tokens: Sequence[int]) -> list[int]:
        """Rows of `tokens` below a row, as far as the tree has them."""
        found: list[int] = []
        for token in tokens:
            child = self._child.get((row, token))
            if child is None:
                break
            found.append(row := child)
        return found
