"""The contract of a drafter, and the base of those that look continuations up."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from specframe.lookup.continuation_tree import ContinuationTree
from specframe.lookup.foresight import Prospect
from specframe.lookup.trie import Trie, TrieTables
from specframe.records import Context, StepRecord
from specframe.registry import Registry
from specframe.types import Budget, Draft, Frontier, Needs, Proposal, TargetOutput


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a drafter says of itself, before anything is drafted.

    A class says it for all of its kind; an object replaces what its numbers or its network decide.
    """

    needs: Needs = field(default_factory=Needs)  # what it asks of the target
    # "logits": laws that can be drawn from; "drawn": tokens it has drawn itself, with their laws;
    # "none": candidates that can only be placed.
    laws: Literal["none", "logits", "drawn"] = "none"
    native: bool = False  # `native` knows whole branches
    drafts: bool = True  # it ever proposes anything
    max_positions: int | None = None  # longest context that it can draft for; None: no limit
    host_reads: int = 0  # waits for the device in one step while drafting
    # Why its proposals depend on more than the text (on how it was reached); "" if they do not.
    # Such drafts cannot be recorded and replayed.
    learns: str = ""
    synthetic: bool = False  # it knows the text, so its figures are those of no method
    sources: tuple[Traits, ...] = ()  # of the drafters that its children come from, if it has any
    lanes: bool = False  # `expand` may get nodes of several lanes, and answers row by row


class Drafter(ABC):
    """Proposes what might come next. Only `expand` has no default.

    What a single reader asks for is an optional protocol beside that reader: `Foresees`
    (lookup.foresight, for tree=auto and routers), `Remembers` (records, for what outlives a text),
    `Capturable` (capture.capturable), `Settles` and `Composed` (compose.axes).
    """

    traits: Traits = Traits()

    def begin(self, context: Context, out: TargetOutput) -> None:
        """Start a sequence: the prompt and the first emitted token are in `context` (live: it grows
        as tokens are emitted); `out` has the taps of the prompt. Forget the sequence before, unless
        the user asked to keep what was learnt."""

    @abstractmethod
    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        """One proposal per source for the children of each frontier node, in its order."""

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        """Whole branches of tokens after the root, best first."""
        raise NotImplementedError(f"{type(self).__name__} has no branches of its own")

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        """The draft with auxiliary rows, slots or a resume point added (dataclasses.replace).

        Not asked where the cache has no room for `needs.aux_rows` any more."""
        return draft

    def readback(self, draft: Draft, out: TargetOutput) -> Tensor | None:
        """int64 values that must reach the host with the verdict (`record.readback`)."""
        return None

    def observe(self, record: StepRecord) -> None:
        """Store what the step showed; the context has grown already. Networks run in `expand`."""

    def truncate(self, length: int) -> None:
        """The context goes back to `length` tokens."""


@dataclass(frozen=True)
class Continuation:
    """Tokens that may follow the root; heavier ones are tried first."""

    tokens: Sequence[int]
    weight: float = 1.0


class Retrieval(Drafter):
    """Base of drafters that look continuations up on the host, once a step.

    A subclass gives `continuations`; they are merged into a trie, whose tables answer `expand` on
    the device, and `tree=native` takes them as they are.
    """

    traits = Traits(native=True)
    max_trie_nodes: ClassVar[int] = 512

    def begin(self, context: Context, out: TargetOutput) -> None:
        self.context = context
        self._tables: TrieTables | None = None
        self._level: tuple[Tensor, Tensor] | None = None  # (nodes [F], trie handles [F])

    @abstractmethod
    def continuations(self) -> Sequence[Continuation]:
        """What may follow the root of `self.context`, from its host tokens."""

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        if frontier.depth == 0:
            self._look_up(frontier.tokens.device)
        tables = self._tables
        if tables is None or frontier.depth >= len(tables.widths):
            return []
        handles = self._handles(frontier, tables)
        self._level = (frontier.nodes, handles)
        width = tables.widths[frontier.depth]
        return [
            Proposal(
                candidates=tables.tokens[handles, :width],
                scores=tables.scores[handles, :width],
                source=type(self).__name__.lower(),
            )
        ]

    @property
    def match_length(self) -> int:
        """Tokens at the context's end that were found elsewhere. Unless a subclass measures it: as
        long as can be where anything is found, else 0."""
        return sys.maxsize if self.continuations() else 0

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        return [one.tokens[: budget.depth] for one in self._ranked()]

    def prospects(self) -> Sequence[Prospect]:
        """What it would place now, known before anything is drafted."""
        length = self.match_length
        one = Prospect(
            source=type(self).__name__.lower(),
            expand=self.expand,
            known=self._trie(),
            match_length=None if length == sys.maxsize else length,
            aux_rows=self.traits.needs.aux_rows,
        )
        return [one]

    def _ranked(self) -> list[Continuation]:
        """Heaviest first, so that a full trie lacks the lightest; ties stay in order."""
        return sorted(self.continuations(), key=lambda one: -one.weight)

    def _trie(self) -> Trie:
        trie = Trie(max_nodes=self.max_trie_nodes)
        for one in self._ranked():
            trie.add(one.tokens, one.weight)
        return trie

    def _look_up(self, device: torch.device) -> None:
        trie = self._trie()
        self._tables = TrieTables.of(trie, device) if trie.num_nodes else None
        self._level = None

    def _handles(self, frontier: Frontier, tables: TrieTables) -> Tensor:
        """[F] trie handle of each node: where its token leads from its parent's handle."""
        if self._level is None:
            return torch.zeros_like(frontier.nodes)
        nodes, handles = self._level
        parent = (frontier.parents[:, None] == nodes).int().argmax(1)
        return tables.descend(handles[parent], frontier.tokens)


class CountedRetrieval(Retrieval):
    """Base of those whose continuations are a tree of counts, grown best first.

    `tree=native` gets a branch per node in the order of growth, so that a small budget keeps the
    likeliest nodes; the scores of other trees are the logarithms of the nodes' shares.
    """

    @abstractmethod
    def grown(self) -> ContinuationTree:
        """The tree that follows the root of `self.context`."""

    def continuations(self) -> Sequence[Continuation]:
        """One a node, with the share of its probability that no child has; the empty one has what
        is left at the root."""
        grown = self.grown()
        taken = sum(node.probability for node in grown.nodes if node.parent < 0)
        paths = zip(grown.branches(), grown.nodes, strict=True)
        ends = [Continuation(path, max(node.rest, 0.0)) for path, node in paths]
        return [*ends, Continuation([], max(1.0 - taken, 0.0))]

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        branches = [path for path in self.grown().branches() if len(path) <= budget.depth]
        return branches[: budget.rows - 1]


DRAFTERS: Registry[Drafter] = Registry("drafter", "specframe.drafter")
