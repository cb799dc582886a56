"""Suffix automaton: copy what followed the longest match, as far as its length and counts allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Protocol

from specframe.drafter.base import DRAFTERS, CountedRetrieval
from specframe.lookup.continuation_tree import (
    ContextCounts,
    ContinuationTree,
    likeliest_continuations,
)
from specframe.lookup.datastore import open_datastore
from specframe.lookup.suffix_automaton import SEPARATOR, SuffixAutomaton, TextMatcher
from specframe.records import Context, StepRecord
from specframe.registry import Range
from specframe.target.base import Target
from specframe.types import TargetOutput


class Matches(ContextCounts, Protocol):
    """A source of continuations for the end of the context."""

    def matches(self) -> Iterator[Any]:
        """Places of suffixes of the context (each with its `length`), longest first."""


@DRAFTERS.register("suffix")
class Suffix(CountedRetrieval):
    """Drafts a tree of what followed the context's suffixes before, likeliest first.

    Known are prompt and output, and on request a corpus and earlier outputs of this process; each
    emitted token is added to an automaton that always knows the longest match. Gives no law, so it
    is placed; lossless under every lossless rule. Needs nothing of the target; no draft forward.
    Equation, for a match of m tokens: MAX_SPEC = min(max_tokens, alpha * m) nodes are taken, each
    the best left by D(node) = D(parent) * count(node) / count(parent), while D >= min_probability;
    of all matches and sources the tree with the largest sum of D is drafted. The text's end counts
    as an occurrence, so what was seen once before has D = 1/2.
    `warm`: earlier outputs are known (keep_outputs > 0, from the second prompt on).
    Paper: SuffixDecoding, arXiv 2411.04975 (up to 5.3x on AgenticSQL, 2.8x faster than EAGLE-2/3
    there); the exact longest match by automaton is of SAM decoding, arXiv 2411.10666.
    """

    def __init__(
        self,
        *,
        max_match: Annotated[int, Range(1, 256)],
        alpha: Annotated[float, Range(0, 64, low_open=True)],
        max_tokens: Annotated[int, Range(1, 512)],
        min_probability: Annotated[float, Range(0, 1)],
        corpus: str | None,
        keep_outputs: Annotated[int, Range(0, None)],
        target: Target,
    ) -> None:
        self.max_match = max_match
        self.alpha = alpha
        self.max_tokens = max_tokens
        self.min_probability = min_probability
        self.keep_outputs = keep_outputs
        self.warm: bool | None = False if keep_outputs else None
        self._datastore = None if corpus is None else open_datastore(corpus, target)
        self._outputs: list[list[int]] = []
        self._earlier = self._automaton()
        self._ended: Context | None = None  # whose output is not yet among the earlier ones

    def begin(self, context: Context, out: TargetOutput) -> None:
        output = [] if self._ended is None else self._ended.tokens[self._ended.prompt_length :]
        if self.keep_outputs and output:
            self._keep(output)
        self._ended = context
        if self.keep_outputs:
            self.warm = bool(self._outputs)
        super().begin(context, out)
        self._own = self._automaton()
        self._reader = TextMatcher(self._earlier)
        self._catch_up()

    def observe(self, record: StepRecord) -> None:
        self._catch_up()

    def truncate(self, length: int) -> None:
        while len(self._own) > length:
            self._own.pop()
        self._reader = TextMatcher(self._earlier)
        self._reader.read(self._own.tokens[-self.max_match :])

    def remembered(self) -> Any:
        return ([*self._outputs], self._ended) if self.keep_outputs else None

    def recall(self, memory: Any) -> None:
        outputs, self._ended = memory
        self._outputs, self._earlier = [], self._automaton()
        for output in outputs:
            self._keep(output)

    @property
    def match_length(self) -> int:
        """Tokens of the context's longest suffix that occurs in it before."""
        self._catch_up()
        return self._own.match_length

    def grown(self) -> ContinuationTree:
        """The best tree over all sources and matches."""
        self._catch_up()
        best = ContinuationTree()
        for source in self._sources():
            for match in source.matches():
                room = min(self.max_tokens, int(self.alpha * match.length))
                if room <= best.score:  # no node counts more than 1, and the next match is shorter
                    break
                grown = likeliest_continuations(
                    source,
                    match,
                    # The text's own end is among its counts; elsewhere it is one more occurrence.
                    total=source.count(match) + (source is not self._own),
                    max_nodes=room,
                    max_depth=room,
                    min_probability=self.min_probability,
                )
                best = grown if grown.score > best.score else best
        return best

    def _sources(self) -> Iterator[Matches]:
        yield self._own
        if self._outputs:
            yield self._reader
        if self._datastore is not None:
            yield self._datastore.query(self._own.tokens[-self.max_match :])

    def _catch_up(self) -> None:
        more = self.context.tokens[len(self._own) :]
        for token in more:
            self._own.push(token)
        if self._outputs:
            self._reader.read(more)

    def _keep(self, output: list[int]) -> None:
        """Add an output; twice as many as asked for are thinned to the latest."""
        self._outputs.append(output)
        added = [output]
        if len(self._outputs) > 2 * self.keep_outputs:
            del self._outputs[: -self.keep_outputs]
            self._earlier, added = self._automaton(), self._outputs
        for one in added:
            for token in [*one, SEPARATOR]:
                self._earlier.push(token)

    def _automaton(self) -> SuffixAutomaton:
        return SuffixAutomaton(max_counted=self.max_match + 1)
