"""Finds at which rank a drafter's guesses are right, along answers that the target wrote.

The target answers a prompt first. Then the same text is gone through once more, a token a step: the
policy asks the drafter for guesses below each true token and notes the rank of the next one, and
the rule emits the text whatever the target says (teacher forcing). So every depth is judged at
every position, also where an ordinary draft would have ended above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specframe.accept.base import RULES, AcceptRule
from specframe.capture.capturable import Expand
from specframe.costs.rank_counts import MISS, RankCounts
from specframe.drafting.builder import TreeBuilder
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.lookup.foresight import prospects_of
from specframe.session.engine import Engine
from specframe.session.prompt_encoding import Prompt
from specframe.tree.base import Source, TreePolicy, widest
from specframe.types import Budget, Draft, How, Verdict


class TruePathTree(TreePolicy):
    """Expands the true continuation of the text and counts the ranks of its tokens.

    The bare root is left to be verified. Decides by the text alone, before any draw.
    """

    def __init__(self, counts: RankCounts, *, how: How, source: str | None = None) -> None:
        super().__init__(depth=counts.depth, max_nodes=counts.depth + 1, proposal=how)
        self.counts = counts
        self.source = source
        self.text: list[int] = []  # true tokens behind the root; the first one goes each step

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        truth = self.text[: self.depth]
        expand: Expand = source.expand
        if self.source is not None:
            prospects = prospects_of(source)
            own = (each.expand for each in prospects if each.source == self.source)
            expand = next(own, expand)
        self.counts.add(list(self._ranks(builder, expand, truth)), len(truth))
        builder.prune(builder.root.nodes[:0])
        del self.text[:1]

    def _ranks(self, builder: TreeBuilder, expand: Expand, truth: Sequence[int]) -> Iterator[int]:
        frontier = builder.root
        for token in truth:
            proposal = widest(expand(frontier))
            if proposal is None:
                yield MISS
                return
            parent, frontier = (
                frontier,
                builder.place(frontier, frontier.tokens.new_tensor([[token]])),
            )
            guesses = builder.extend(parent, proposal, self.counts.top_k).tokens.tolist()
            if token not in guesses:
                yield MISS
                return
            yield guesses.index(token)


class TeacherForcing(AcceptRule):
    """Emits a given text, one token a step, whatever the target says.

    It is lossless for a text that the target wrote.
    """

    lossless: bool = True
    reads: frozenset[How] = frozenset({"place", "iid", "wor", "coupled"})

    def __init__(self) -> None:
        self.text: Tensor | None = None  # [T] prompt and answer

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        assert self.text is not None
        none = draft.tokens.new_full((1, draft.depth), -1)
        here = self.text[laws.position : laws.position + 1]
        tokens = torch.cat([here[None], none], dim=1)
        return Verdict(path=none, tokens=tokens, count=torch.ones_like(here))


class Calibrator:
    """Answers prompts with an engine, then counts ranks along each answer.

    The text is the target's own: it is written by the engine's drafter and tree with accept=match.
    source: the only one of the drafter's sources to ask (`Prospect.source`); None asks the drafter.
    """

    def __init__(self, engine: Engine, counts: RankCounts, *, source: str | None = None) -> None:
        parts = engine.components
        self._writer = Engine(replace(parts, accept=RULES.get("match")()), engine.settings)
        self._policy = TruePathTree(counts, how=parts.how, source=source)
        self._rule = TeacherForcing()
        self._reader = Engine(replace(parts, tree=self._policy, accept=self._rule), engine.settings)

    def count(self, prompt: Prompt, *, sequence: int) -> int:
        """Count along the answer to one prompt; returns its number of tokens."""
        answer = self._writer.generate(prompt, sequence=sequence)
        text = [*answer.prompt_tokens, *answer.tokens]
        if not answer.tokens:
            return 0
        loop = self._reader.decoding(max_new_tokens=len(answer.tokens))
        self._policy.text = answer.tokens[1:]
        self._rule.text = torch.tensor(text, device=self._reader.components.target.device)
        for _ in loop.run(answer.prompt_tokens, sequence=sequence):
            pass
        return len(answer.tokens)
