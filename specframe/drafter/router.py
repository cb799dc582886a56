"""Several drafters at once: one is picked a step by what the context repeats, or all propose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.errors import IncompatibleComponents
from specframe.lookup.foresight import Prospect, match_length_of, prospects_of
from specframe.records import Context, Remembers, StepRecord, is_warm, memory_of
from specframe.registry import Range
from specframe.types import AuxRows, Budget, Draft, Frontier, Needs, Proposal, TargetOutput

Expand = Callable[[Frontier], Sequence[Proposal]]


@DRAFTERS.register("router")
class Router(Drafter):
    """The source with the longest suffix match, from min_match tokens on; else the first model.

    sources: words of drafters; the keys of each stand under its word (drafter.ngram.n_max).
    mode=pick: the source that comes first drafts the step alone; the next one if it has nothing.
    mode=merge: all propose under every node, the one that pick would take first: a chain follows
    the first that offers anything, tree=static deals its ranks to them in turn, tree=dynamic ranks
    all their children. Each draw keeps its own source's law, so it is lossless under every lossless
    rule; accept=rejection needs one source that gives a law. The choice is made from emitted tokens
    alone, before any draw; tree=auto picks by expected speed instead, whatever the mode. What was
    not picked hears of every step and catches up when it drafts. A source whose context has ended
    drafts no more; the others go on.
    Needs: what its sources need. Draft forwards per step: those of the sources that propose.
    Papers: SAM-Decoding, arXiv 2411.10666 (retrieval above a match length, else EAGLE-2 or token
    recycling); SuffixDecoding, arXiv 2411.04975 (its hybrid with a draft model).
    """

    # As of the sources in conf/, until `composed` knows others.
    traits = Traits(needs=Needs(own_cache=True), laws="logits", native=True)
    why_no_laws: ClassVar[str] = "none of drafter.sources does; one like lm would"

    @classmethod
    def composed(cls, members: Mapping[str, Sequence[Any]]) -> type[Drafter]:
        return _over(cls, tuple(members["drafter"]))

    def __init__(
        self,
        *,
        sources: Sequence[Drafter],
        mode: Literal["pick", "merge"],
        min_match: Annotated[int, Range(1, 64)],
    ) -> None:
        self.drafters = list(sources)
        self.mode = mode
        self.min_match = min_match
        self.traits = _joint_traits([source.traits for source in sources])
        self.warm = self._warmth()
        layered = sum(source.traits.needs.partial_layers for source in sources)
        if layered > 1 or (layered and self.traits.needs.aux_rows):
            raise IncompatibleComponents(
                "drafter.sources: one that runs the target's own layers goes neither with another "
                "such nor with one that adds auxiliary rows; use only one of them"
            )

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._context = context
        self._drafting: list[Drafter] = []  # this step, in order
        self._aux: list[AuxRows | None] = [None] * len(self.drafters)
        self._sizes = [0] * len(self.drafters)  # values that each part reads back
        for one in self.drafters:
            one.begin(context, out)
        self.warm = self._warmth()

    def _warmth(self) -> bool | None:
        """Whether any part began warm; None if none of them keeps anything."""
        starts = [warm for part in self.drafters if (warm := is_warm(part)) is not None]
        return any(starts) if starts else None

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        if frontier.depth == 0:
            self._drafting = self._ranked()
            if self.mode == "pick":
                return self._picked(frontier)
        able = [one for one in self._drafting if self._reaches(one, frontier.depth)]
        return [proposal for one in able for proposal in one.expand(frontier)]

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        able = [part for part in self._ranked() if part.traits.native]
        branches = (one.native(self._share(one, budget)) for one in able)
        if self.mode == "pick":
            return next((found for found in branches if found), [])
        turns = zip_longest(*branches)
        return [branch for turn in turns for branch in turn if branch is not None]

    def prospects(self) -> Sequence[Prospect]:
        return [
            replace(prospect, expand=partial(self._within, part, prospect.expand))
            for part in self.drafters
            if self._reaches(part, 0)
            for prospect in prospects_of(part)
        ]

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        for place, one in enumerate(self.drafters):
            draft = one.aux(replace(draft, aux=None), budget)
            self._aux[place] = draft.aux
        return replace(draft, aux=_stacked(self._aux, draft.num_rows))

    def readback(self, draft: Draft, out: TargetOutput) -> Tensor | None:
        views = [self._view(draft, out, place) for place in range(len(self.drafters))]
        found = [
            one.readback(mine, seen) for one, (mine, seen) in zip(self.drafters, views, strict=True)
        ]
        self._sizes = [0 if values is None else values.numel() for values in found]
        given = [values.view(-1) for values in found if values is not None]
        return torch.cat(given) if given else None

    def observe(self, record: StepRecord) -> None:
        start = 0
        for place, one in enumerate(self.drafters):
            stop = start + self._sizes[place]
            draft, out = self._view(record.draft, record.out, place)
            # A forced step has nothing read back, whatever the step before had.
            values = record.readback[start:stop]
            one.observe(replace(record, draft=draft, out=out, readback=values))
            start = stop

    def truncate(self, length: int) -> None:
        for one in self.drafters:
            one.truncate(length)

    def remembered(self) -> Any:
        memories = [memory_of(part) for part in self.drafters]
        return None if all(memory is None for memory in memories) else memories

    def recall(self, memory: Any) -> None:
        for part, own in zip(self.drafters, memory, strict=True):
            if own is not None and isinstance(part, Remembers):
                part.recall(own)

    def _reaches(self, part: Drafter, depth: int) -> bool:
        """Whether nodes of this depth are inside the context that a part can draft for."""
        room = part.traits.max_positions
        return room is None or len(self._context) + depth <= room

    def _within(self, part: Drafter, expand: Expand, frontier: Frontier) -> Sequence[Proposal]:
        """What a part offers, as far as its context goes."""
        return expand(frontier) if self._reaches(part, frontier.depth) else []

    def _share(self, part: Drafter, budget: Budget) -> Budget:
        """The budget of a part, whose context may end inside it."""
        room = part.traits.max_positions
        left = budget.depth if room is None else room - len(self._context) + 1
        return replace(budget, depth=min(budget.depth, left))

    def _ranked(self) -> list[Drafter]:
        """Longest matches first, then models, then matches that are too short; ties as listed."""
        able = [part for part in self.drafters if self._reaches(part, 0)]
        lengths = [(part, match_length_of(part)) for part in able]
        models = [one for one, length in lengths if length is None]
        measured = [(one, length) for one, length in lengths if length is not None]
        measured.sort(key=lambda pair: -pair[1])
        long = [one for one, length in measured if length >= self.min_match]
        short = [one for one, length in measured if length < self.min_match]
        return long + models + short

    def _picked(self, frontier: Frontier) -> Sequence[Proposal]:
        for one in self._drafting:
            found = one.expand(frontier)
            if any(proposal.width > 0 for proposal in found):
                self._drafting = [one]
                return found
        self._drafting = []
        return []

    def _view(self, draft: Draft, out: TargetOutput, place: int) -> tuple[Draft, TargetOutput]:
        """A step as the part at this place sees it: of all auxiliary rows only its own."""
        if draft.aux is None:
            return draft, out
        own = self._aux[place]
        before = sum(len(one.tokens) for one in self._aux[:place] if one is not None)
        stop = before + (0 if own is None else len(own.tokens))
        n = draft.num_rows
        taps = {
            name: torch.cat([rows[:n], rows[n + before : n + stop]])
            for name, rows in out.taps.items()
        }
        logits = None if own is None or out.aux_logits is None else out.aux_logits[before:stop]
        return replace(draft, aux=own), replace(out, aux_logits=logits, taps=taps)


@cache
def _over(cls: type[Drafter], sources: tuple[type[Drafter], ...]) -> type[Drafter]:
    """The class over these sources; the same sources give the same class."""
    facts = {"traits": _joint_traits([source.traits for source in sources])}
    return type(cls.__name__, (cls,), {**facts, "__doc__": cls.__doc__, "__module__": __name__})


def _joint_traits(sources: Sequence[Traits]) -> Traits:
    """What several drafters say of themselves together."""
    kinds = {source.laws for source in sources}
    limits = [source.max_positions for source in sources if source.max_positions is not None]
    return Traits(
        needs=_joint([source.needs for source in sources]),
        laws="drawn" if "drawn" in kinds else "logits" if "logits" in kinds else "none",
        native=any(source.native for source in sources),
        # The one with the longest context goes on alone where the others have ended.
        max_positions=max(limits) if len(limits) == len(sources) else None,
        host_reads=sum(source.host_reads for source in sources),
        learns=next((source.learns for source in sources if source.learns), ""),
        synthetic=any(source.synthetic for source in sources),
        sources=tuple(sources),
    )


def _joint(needs: Sequence[Needs]) -> Needs:
    """What several drafters need together."""
    return Needs(
        taps=tuple(dict.fromkeys(tap for one in needs for tap in one.taps)),
        aux_rows=sum(one.aux_rows for one in needs),
        tokenizer=any(one.tokenizer for one in needs),
        partial_layers=any(one.partial_layers for one in needs),
        own_cache=any(one.own_cache for one in needs),
    )


def _stacked(parts: Sequence[AuxRows | None], num_rows: int) -> AuxRows | None:
    """The auxiliary rows of several parts below each other; none sees those of another."""
    found = [one for one in parts if one is not None]
    if not found:
        return None
    blocks = torch.block_diag(*(one.sees[:, num_rows:].long() for one in found)).bool()
    return AuxRows(
        tokens=torch.cat([one.tokens for one in found]),
        positions=torch.cat([one.positions for one in found]),
        sees=torch.cat([torch.cat([one.sees[:, :num_rows] for one in found]), blocks], dim=1),
    )
