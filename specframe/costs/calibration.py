"""Counts at which rank a drafter's guesses are right along a text that is known already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from specframe.accept.base import RULES, AcceptRule
from specframe.drafting.builder import TreeBuilder
from specframe.law.laws import Laws
from specframe.law.streams import Streams
from specframe.planning.rank_paths import RankPath, RankTable
from specframe.session.engine import Engine, Prompt
from specframe.tree.base import Source, TreePolicy, widest
from specframe.types import Budget, Draft, Frontier, How, Proposal, Verdict

Expand = Callable[[Frontier], Sequence[Proposal]]
MISS = -1  # the true token was not among the guesses


@dataclass
class RankCounts:
    """seen: (ranks of the true tokens down to the first miss, number of true tokens that could be
    looked at) -> positions of the text. depth, top_k: how deep and wide was looked."""

    depth: int
    top_k: int
    seen: Counter[tuple[RankPath, int]] = field(default_factory=Counter)

    def add(self, ranks: Sequence[int], room: int) -> None:
        """One position."""
        self.seen[tuple(ranks), room] += 1

    @property
    def num_positions(self) -> int:
        """Places of the text from which was drafted."""
        return self.seen.total()

    def reached(self) -> list[int]:
        """[D] positions where a guess of this depth was judged: the text went on so far, and all
        tokens above were guessed (at any rank)."""
        counts = [0] * self.depth
        for (ranks, room), times in self.seen.items():
            right = len(ranks) - (MISS in ranks)
            for depth in range(min(right + 1, room)):
                counts[depth] += times
        return counts

    def hits(self) -> list[list[int]]:
        """[D][K] how often the guess of each rank was right."""
        counts = [[0] * self.top_k for _ in range(self.depth)]
        for (ranks, _), times in self.seen.items():
            for depth, rank in enumerate(ranks):
                if rank != MISS:
                    counts[depth][rank] += times
        return counts

    def table(self) -> list[list[float]]:
        """[D][K] hits / reached, 0 where nothing was reached."""
        pairs = zip(self.hits(), self.reached(), strict=True)
        return [[hit / max(reached, 1) for hit in row] for row, reached in pairs]

    def pooled(self) -> RankTable:
        """[D][K] one row for all depths, as Sequoia assumes."""
        total = max(sum(self.reached()), 1)
        row = [sum(column) / total for column in zip(*self.hits(), strict=True)]
        return [row] * self.depth

    def counted_length(self, paths: Sequence[RankPath]) -> float:
        """Mean tokens that a pass over these paths would have emitted, over all positions; unlike
        a product of the table it takes no two depths for independent."""
        known, emitted = set(paths), 0
        for (ranks, _), times in self.seen.items():
            right = [rank for rank in ranks if rank != MISS]
            depth = 0
            while depth < len(right) and tuple(right[: depth + 1]) in known:
                depth += 1
            emitted += times * (1 + depth)
        return emitted / max(self.num_positions, 1)


class TruePathTree(TreePolicy):
    """Asks the drafter for guesses below each true token, notes the rank of the next one, and
    leaves the bare root to be verified. Decides by the text alone, before any draw.
    """

    def __init__(self, counts: RankCounts, *, how: How, source: str | None = None) -> None:
        super().__init__(depth=counts.depth, max_nodes=counts.depth + 1, proposal=how)
        self.counts = counts
        self.source = source
        self.text: list[int] = []

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        truth = self.text[: self.depth]
        expand: Expand = source.expand
        if self.source is not None:
            own = (one.expand for one in source.prospects() if one.source == self.source)
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
    """Emits a given text, one token a step, whatever the target says. Lossless for that text."""

    lossless: ClassVar[bool] = True
    reads: ClassVar[frozenset[How]] = frozenset({"place", "iid", "wor", "coupled"})

    def __init__(self) -> None:
        self.text: Tensor | None = None  # [T] prompt and answer

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        assert self.text is not None
        none = draft.tokens.new_full((draft.depth,), MISS)
        here = self.text[laws.position : laws.position + 1]
        return Verdict(path=none, tokens=torch.cat([here, none]), count=none.new_ones(()))


class Calibrator:
    """Answers prompts with an engine, then goes through each answer again token by token.

    The text is the target's own: the engine's drafter and tree with accept=match. source: that one
    of the drafter's alone (`Prospect.source`).
    """

    def __init__(self, engine: Engine, counts: RankCounts, *, source: str | None = None) -> None:
        parts = engine.parts
        self._writer = Engine(replace(parts, accept=RULES.get("match")()), engine.settings)
        self._policy = TruePathTree(counts, how=parts.how, source=source)
        self._rule = TeacherForcing()
        self._reader = Engine(replace(parts, tree=self._policy, accept=self._rule), engine.settings)

    def count(self, prompt: Prompt, *, sequence: int) -> int:
        """Count over the answer to one prompt; returns its number of tokens."""
        made = self._writer.generate(prompt, sequence=sequence)
        text = [*made.prompt_tokens, *made.tokens]
        loop = self._reader.decoding(max_new_tokens=len(made.tokens))
        self._policy.text = made.tokens[1:]
        self._rule.text = torch.tensor(text, device=self._reader.parts.target.device)
        loop.begin(made.prompt_tokens, sequence=sequence)
        while loop.finish_reason is None:
            loop.step()
        return len(made.tokens)
