"""Prompt lookup: copy what followed the last few tokens when they occurred before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from specframe.drafter.base import DRAFTERS, Continuation, Retrieval
from specframe.records import Context, StepRecord
from specframe.registry import Range
from specframe.types import TargetOutput

_LONGER = 8.0  # a match of one token more outweighs this many shorter ones


@DRAFTERS.register("ngram")
class Ngram(Retrieval):
    """Finds earlier occurrences of the context's last n tokens, n = n_max .. n_min, longest first.

    Proposes the `length` tokens after each; several matches become a tree. Gives no law, so it is
    placed; lossless under every lossless rule. Needs nothing of the target; no draft forward.
    Amortised O(n_max) a token: positions are indexed by n-gram as the text grows.
    Source: Saxena, prompt lookup decoding (2023); also in transformers as prompt_lookup_num_tokens.
    """

    def __init__(
        self,
        *,
        n_max: Annotated[int, Range(1, 32)],
        n_min: Annotated[int, Range(1, 32)],
        length: Annotated[int, Range(1, 64)],
        max_matches: Annotated[int, Range(1, 64)],
    ) -> None:
        if n_min > n_max:
            raise ValueError(f"drafter.n_min={n_min} is above drafter.n_max={n_max}")
        self.n_max = n_max
        self.n_min = n_min
        self.length = length
        self.max_matches = max_matches

    def begin(self, context: Context, out: TargetOutput) -> None:
        super().begin(context, out)
        self._reindex()

    def observe(self, record: StepRecord) -> None:
        self._index()

    def truncate(self, length: int) -> None:
        self._reindex()

    def continuations(self) -> Sequence[Continuation]:
        self._index()
        tokens = self.context.tokens
        found: dict[int, int] = {}  # end of an occurrence -> tokens matched
        for n in range(min(self.n_max, len(tokens) - 1), self.n_min - 1, -1):
            for end in reversed(self._ends[tuple(tokens[-n:])]):
                if len(found) == self.max_matches:
                    break
                found.setdefault(end, n)
        return [
            Continuation(tokens[end : end + self.length], _LONGER**n) for end, n in found.items()
        ]

    @property
    def match_length(self) -> int:
        self._index()
        tokens = self.context.tokens
        longest = min(self.n_max, len(tokens) - 1)
        sizes = range(longest, self.n_min - 1, -1)
        return next((n for n in sizes if self._ends.get(tuple(tokens[-n:]))), 0)

    def _reindex(self) -> None:
        self._ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        self._indexed = 0
        self._index()

    def _index(self) -> None:
        """Index n-grams that end before the last token: what followed them is known."""
        tokens = self.context.tokens
        for end in range(max(self._indexed, 1), len(tokens)):
            for n in range(self.n_min, min(self.n_max, end) + 1):
                self._ends[tuple(tokens[end - n : end])].append(end)
        self._indexed = max(len(tokens), 1)
