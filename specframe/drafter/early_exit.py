"""The target's own first layers draft, and the verify pass goes on where they stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.drafting.feeding import TargetFeeding
from specframe.errors import ConfigError
from specframe.records import Context
from specframe.registry import Range
from specframe.target.base import Target
from specframe.types import (
    Budget,
    Draft,
    Fresh,
    Frontier,
    Needs,
    Proposal,
    Resume,
    Rows,
    TargetOutput,
)


@DRAFTERS.register("early_exit")
class EarlyExit(Drafter):
    """q(x) = softmax(head(norm(h_E))): blocks [0, E) of the target, then its own norm and head.

    layer: E; null: a quarter of the blocks. A node's keys in the blocks below E are written once,
    into the target's cache; the verify pass runs blocks [E, L) over the stored hidden states. Rows
    that the tree never expanded (its leaves) get their lower blocks in one narrow pass before it.
    With E = L it drafts the target's own text. Lossless under every lossless rule.
    Needs: partial layers; no cache and no weights of its own. Draft passes per step: one of E
    blocks per expanded level and one for the leaves. Target forwards per step: 1, of L - E blocks.
    The parents of a frontier must have been expanded here too.
    Paper: LayerSkip, arXiv 2404.16710: up to 2.16x on CNN/DM summaries, 1.82x on code, 2.0x on
    TOPv2, with models trained by layer dropout and early-exit loss; others exit early badly.
    """

    traits = Traits(needs=Needs(partial_layers=True), laws="logits")

    def __init__(self, *, layer: Annotated[int, Range(1, None)] | None, target: Target) -> None:
        blocks = target.num_layers
        if layer is not None and layer > blocks:
            raise ConfigError(
                f"drafter.layer={layer}: {target.name} has {blocks} blocks; use 1 .. {blocks}"
            )
        self.layer = max(1, round(blocks / 4)) if layer is None else layer
        self._target = target
        self._logits: Tensor | None = None  # [F, V] of the frontier that ran last
        self._feeding = TargetFeeding()

    def begin(self, context: Context, out: TargetOutput) -> None:
        assert context.cache is not None
        self._feeding.begin(context.cache)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        hidden = self._feeding.feed(frontier, self._run)
        if hidden is None:
            return []
        assert self._logits is not None
        return [Proposal(logits=self._logits, source="early_exit")]

    def _run(self, rows: Rows, states: Tensor) -> Tensor:
        """[F, H] what leaves the lower blocks at a frontier's nodes; keeps their logits aside."""
        every = torch.arange(len(rows.slots), device=rows.slots.device)
        layers = (0, self.layer)
        out = self._target.forward(rows, self._feeding.cache, layers=layers, want=every)
        self._logits = out.logits
        return out.hidden

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        feeding, cache = self._feeding, self._feeding.cache
        if not feeding.count or draft.aux is not None:
            return feeding.give_back(draft)  # an ordinary pass over all blocks
        fed = feeding.all()
        match = draft.origin[:, None] == fed.nodes  # [N, F]
        known, place = match.any(1), match.int().argmax(1)
        # How many rows are open is a value; that at most so many nodes were never fed is not.
        most = draft.num_rows - 1
        if feeding.once:
            most = min(most, draft.row_of.shape[0] - feeding.count)
        # Every row gets a fresh slot, open rows the first and dead ones the next; fed rows leave
        # theirs empty.
        order = torch.where(known, 2, (~draft.alive).long()).argsort(stable=True)
        in_order = draft.chain and feeding.alone
        fresh = cache.reserve([draft.num_rows])
        slots = torch.empty_like(fresh.slots).index_copy_(0, order, fresh.slots)
        columns = torch.empty_like(fresh.columns).index_copy_(0, order, fresh.columns)
        draft = replace(
            draft,
            slots=torch.where(known, fed.slots[place], slots),
            columns=torch.where(known, fed.columns[place, 0], columns),
            in_order=in_order,
        )
        open_ = draft.alive & ~known
        hidden = fed.states[place]
        # A row that nobody completed must not pass for one: NaN is refused after the pass.
        rest = torch.zeros_like(hidden).masked_fill_(open_[:, None], torch.nan)
        if most:
            rows = order[:most]
            lower = self._complete(draft, rows, open_[rows], _first(fresh, most))
            rest.index_copy_(0, rows, lower)
        hidden = torch.where(known[:, None], hidden, rest)
        feeding.forget()
        return replace(draft, resume=Resume(layer=self.layer, hidden=hidden))

    def _complete(self, draft: Draft, rows: Tensor, real: Tensor, own: Fresh) -> Tensor:
        """[R, H] what leaves the lower blocks at `rows`, run in the slots `own`; rows that are not
        `real` were fed before or are dead, and stand beside the tree."""
        assert draft.columns is not None
        cache = self._feeding.cache
        length = cache.lengths[0]
        sees = torch.zeros((len(rows), own.extent), dtype=torch.bool, device=rows.device)
        sees.index_copy_(1, draft.columns, draft.ancestors()[rows] & real[:, None])
        sees.scatter_(1, own.columns[:, None], True)
        given = Rows(
            tokens=draft.tokens[rows],
            positions=length + draft.depths[rows],
            slots=own.slots,
            prefix=real * length,
            sees=sees,
        )
        return self._target.forward(given, cache, layers=(0, self.layer)).hidden


def _first(fresh: Fresh, count: int) -> Fresh:
    """The first slots of those reserved together."""
    return replace(fresh, slots=fresh.slots[:count], columns=fresh.columns[:count])
