"""The target's own first layers draft, and the verify pass goes on where they stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from specframe.drafter.base import DRAFTERS, Drafter
from specframe.drafting.feeding import Feeding
from specframe.errors import ConfigError
from specframe.records import Context
from specframe.registry import Range
from specframe.target.base import Target
from specframe.types import Budget, Draft, Frontier, Needs, Proposal, Resume, Rows, TargetOutput


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

    needs = Needs(partial_layers=True)
    gives_laws: ClassVar[bool] = True

    def __init__(self, *, layer: Annotated[int, Range(1, None)] | None, target: Target) -> None:
        blocks = target.num_layers
        if layer is not None and layer > blocks:
            raise ConfigError(
                f"drafter.layer={layer}: {target.name} has {blocks} blocks; use 1 .. {blocks}"
            )
        self.layer = max(1, round(blocks / 4)) if layer is None else layer
        self._target = target
        self._feeding = Feeding(target)

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._feeding.begin(context.cache)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        logits = self._feeding.feed(frontier, layers=(0, self.layer))
        return [] if logits is None else [Proposal(logits=logits, source="early_exit")]

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
        fresh = cache.reserve(draft.num_rows)
        own = torch.empty_like(fresh).index_copy_(0, order, fresh)
        draft = replace(draft, slots=torch.where(known, fed.slots[place], own), in_order=in_order)
        open_ = draft.alive & ~known
        hidden = fed.hidden[place]
        # A row that nobody completed must not pass for one: NaN is refused after the pass.
        rest = torch.zeros_like(hidden).masked_fill_(open_[:, None], torch.nan)
        if most:
            rows = order[:most]
            rest.index_copy_(0, rows, self._complete(draft, rows, open_[rows], fresh[:most]))
        hidden = torch.where(known[:, None], hidden, rest)
        feeding.forget()
        return replace(draft, resume=Resume(layer=self.layer, hidden=hidden))

    def _complete(self, draft: Draft, rows: Tensor, real: Tensor, own: Tensor) -> Tensor:
        """[R, H] what leaves the lower blocks at `rows`, run in slots `own`; rows that are not
        `real` were fed before or are dead, and stand beside the tree."""
        assert draft.slots is not None
        cache = self._feeding.cache
        visible = torch.zeros((len(rows), cache.width), dtype=torch.bool, device=rows.device)
        visible[:, : cache.length] = real[:, None]
        visible.index_copy_(1, draft.slots, draft.ancestors()[rows] & real[:, None])
        visible.scatter_(1, own[:, None], True)
        given = Rows(
            tokens=draft.tokens[rows],
            positions=cache.length + draft.depths[rows],
            slots=own,
            visible=visible,
        )
        return self._target.forward(given, cache, layers=(0, self.layer)).hidden
