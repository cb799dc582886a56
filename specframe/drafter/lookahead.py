"""Lookahead decoding: the target guesses ahead in rows that ride along in the verify pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from specframe.binding import Range
from specframe.drafter.base import DRAFTERS, Continuation, Retrieval
from specframe.records import Context, StepRecord
from specframe.types import AuxRows, Budget, Draft, Needs, TargetOutput


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

    max_trie_nodes: ClassVar[int] = 1024  # every guess whole, whatever the numbers

    def __init__(
        self,
        *,
        window: Annotated[int, Range(1, 64)],
        ngram: Annotated[int, Range(3, 16)],
        guesses: Annotated[int, Range(1, 64)],
        pool_from_prompt: bool,
    ) -> None:
        self.needs = Needs(aux_rows=(ngram - 1) * window - 1)
        self.window = window
        self.ngram = ngram
        self.guesses = guesses
        self.pool_from_prompt = pool_from_prompt

    def begin(self, context: Context, out: TargetOutput) -> None:
        super().begin(context, out)
        self._pool = Pool(size=self.guesses)
        length = context.prompt_length
        spread = [place * length // self.window for place in range(self.window)]
        self._levels = [[context.tokens[place] for place in spread]]
        if self.pool_from_prompt:
            for start in range(len(context) - self.ngram + 1):
                self._pool.add(context.tokens[start : start + self.ngram])

    def continuations(self) -> Sequence[Continuation]:
        return [Continuation(one) for one in self._pool.after(self.context.tokens[-1])]

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        if budget.depth < 1 or self._num_aux == 0:
            return draft  # no step is left that could use what the window finds
        device, count = draft.tokens.device, draft.num_rows
        sees = torch.zeros((self._num_aux, count + self._num_aux), dtype=torch.bool, device=device)
        sees[:, 0] = True  # the root
        pattern = window_pattern(len(self._levels), self.window)
        sees[:, count:] = pattern[1:, 1:].to(device)
        places = [level + i for level in range(len(self._levels)) for i in range(self.window)]
        tokens = [token for level in self._levels for token in level]
        first = len(self.context) - 1
        rows = AuxRows(
            tokens=torch.tensor(tokens[1:], device=device),
            positions=torch.tensor(places[1:], device=device) + first,
            sees=sees,
        )
        return replace(draft, aux=rows)

    def readback(self, draft: Draft, out: TargetOutput) -> Tensor | None:
        """[W] what the last level predicts; the root, which is no auxiliary row, predicts too."""
        found = out.logits[:0] if out.aux_logits is None else out.aux_logits[-self.window :]
        if draft.aux is None and self._num_aux:
            return None
        if len(found) < self.window:
            found = torch.cat([out.logits[:1], found])
        return found.argmax(-1)

    def observe(self, record: StepRecord) -> None:
        new = record.readback
        if not new:  # the window did not ride along
            return
        self._levels[0][0] = self.context.tokens[record.length_before - 1]
        full = len(self._levels) == self.ngram - 1
        if full:
            for column in zip(*self._levels, new, strict=True):
                self._pool.add(column)
        self._levels = [*self._levels[full:], new]

    @property
    def _num_aux(self) -> int:
        return len(self._levels) * self.window - 1


class Pool:
    """First token -> its `size` newest n-grams; one that comes again becomes the newest."""

    def __init__(self, *, size: int) -> None:
        self._size = size
        self._held: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Keep an n-gram; the oldest of its first token makes room."""
        held = self._held.setdefault(ngram[0], {})
        rest = tuple(ngram[1:])
        held.pop(rest, None)
        held[rest] = None
        if len(held) > self._size:
            del held[next(iter(held))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What may follow a token, newest first."""
        return list(reversed(self._held.get(token, {})))


def window_pattern(num_levels: int, window: int) -> Tensor:
    """[L W, L W] bool: which tokens of a window see which, level by level, the root among them."""
    level = torch.arange(num_levels).repeat_interleave(window)
    column = torch.arange(window).repeat(num_levels)
    base = (level == 0) & (column <= column[:, None])
    own = (column == column[:, None]) & (level <= level[:, None])
    return base | own
