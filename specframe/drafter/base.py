"""The contract of a drafter, and the base of those that look continuations up."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from specframe.lookup.continuation_tree import ContinuationTree
from specframe.lookup.foresight import Prospect
from specframe.lookup.trie import Trie, TrieTables
from specframe.records import Context, StepRecord
from specframe.registry import Registry
from specframe.types import Budget, Draft, Frontier, Needs, Proposal, TargetOutput

Expand = Callable[[Frontier], Sequence[Proposal]]


@dataclass(frozen=True, kw_only=True)
class Growing:
    """One step's drafting as a function of tensors: source(fed, held) gives the step's `expand`.

    fed: what differs between steps; held: buffers it may write to (see `Runtime.wrap`). Whatever
    else `expand` reads is fixed by the key.
    """

    fed: tuple[Tensor, ...]
    held: tuple[Tensor, ...]
    key: Hashable
    source: Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], Expand]


class Drafter(ABC):
    """Proposes what might come next. Only `expand` has no default.

    drafts: whether it ever proposes anything.
    gives_laws: its proposals are logits, which can be drawn from (else they are only placed).
    draws_itself: its proposals come with `law` and `drawn`, whatever tree.proposal says.
    has_native: `native` knows whole branches. extra_syncs: host reads of one step while drafting.
    max_positions: longest context it can draft for, None for no limit.
    warm: whether the sequence began with what earlier ones left; None where nothing is kept.
    synthetic: it is told the text, so its figures are no method's. sources: the drafters that its
    children come from, where it is made of others. lawless: why, where it gives no law.
    learns: from what, where its guesses depend on more than the text: on how it was reached.
    """

    needs: Needs = Needs()
    drafts: ClassVar[bool] = True
    gives_laws: ClassVar[bool] = False
    draws_itself: ClassVar[bool] = False
    has_native: ClassVar[bool] = False
    extra_syncs: int = 0
    max_positions: int | None = None
    warm: bool | None = None
    synthetic: ClassVar[bool] = False
    sources: ClassVar[tuple[type[Drafter], ...]] = ()
    lawless: ClassVar[str] = ""
    learns: ClassVar[str] = ""

    @classmethod
    def settle(cls, values: Mapping[str, Any], target: str) -> dict[str, Any]:
        """The values of the YAML with what null and auto stand for, given the target's name.

        Nothing is loaded yet, so what is missing is told at once. Raises ConfigError."""
        return dict(values)

    @classmethod
    def composed(cls, members: Mapping[str, Sequence[Any]]) -> type[Drafter]:
        """The class over the classes that its YAML lists (axis -> classes), which decide on it."""
        return cls

    def begin(self, context: Context, out: TargetOutput) -> None:
        """Start a sequence: the prompt and the first emitted token are in `context` (live: it grows
        as tokens are emitted); `out` has the taps of the prompt. Forget the sequence before, unless
        the user asked to keep it, and say so in `warm`."""

    @abstractmethod
    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        """One proposal per source for the children of each frontier node, in its order."""

    def growing(self, most: int) -> Growing | None:
        """This step's drafting for a runtime that records it, `most` nodes being expanded at most;
        then `expand` is not called, and what it would have kept must not be missed. None: it is
        more than a function of tensors."""
        return None

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        """Whole branches of tokens after the root, best first."""
        raise NotImplementedError(f"{type(self).__name__} has no branches of its own")

    @property
    def match_length(self) -> int | None:
        """Tokens at the context's end that it found elsewhere; None where it looks nothing up."""
        return None

    def prospects(self) -> Sequence[Prospect]:
        """What each of its sources could draft now, by what the host knows; nothing is drafted."""
        word = type(self).__name__.lower()
        return [Prospect(source=word, expand=self.expand, aux_rows=self.needs.aux_rows)]

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        """The draft with auxiliary rows, slots or a resume point added (dataclasses.replace).

        Not asked where the cache has no room for `needs.aux_rows` any more. A synthetic drafter's
        drafts are marked here."""
        return replace(draft, synthetic=True) if self.synthetic else draft

    def readback(self, draft: Draft, out: TargetOutput) -> Tensor | None:
        """int64 values that must reach the host with the verdict (`record.readback`)."""
        return None

    def observe(self, record: StepRecord) -> None:
        """Store what the step showed; the context has grown already. Networks run in `expand`."""

    def truncate(self, length: int) -> None:
        """The context goes back to `length` tokens."""

    def remembered(self) -> Any:
        """What the next sequence will begin with of earlier ones; None where nothing is kept."""
        return None

    def recall(self, held: Any) -> None:
        """Let the next sequence begin with what `remembered` gave, whatever came since."""


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

    has_native: ClassVar[bool] = True
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
    def match_length(self) -> int | None:
        """Unless a subclass measures: as long as can be where anything is found, else 0."""
        return sys.maxsize if self.continuations() else 0

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        return [one.tokens[: budget.depth] for one in self._ranked()]

    def prospects(self) -> Sequence[Prospect]:
        length = self.match_length
        one = Prospect(
            source=type(self).__name__.lower(),
            expand=self.expand,
            known=self._trie(),
            match_length=None if length == sys.maxsize else length,
            aux_rows=self.needs.aux_rows,
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
