"""A smaller language model drafts, with its own cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.drafting.feeding import Feeding, Level
from specframe.drafting.vocabulary import check_vocabulary
from specframe.records import Context, StepRecord
from specframe.target.base import Target
from specframe.types import Frontier, Needs, Proposal, Rows, TargetOutput

_TRUST = ", or set drafter.trust_vocabulary=true if you know that the ids agree"


@DRAFTERS.register("lm")
class LM(Drafter):
    """Runs a draft model over each frontier under a tree mask; gives its logits as the law.

    After a pass the keys of the accepted path are kept, except the last node's, which may not have
    been fed: it and the new root are fed together at the next step (catching up).
    Lossless under every lossless rule. Draft forwards per step: one per expanded level.
    Papers: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318.
    """

    traits = Traits(needs=Needs(own_cache=True), laws="logits")

    def __init__(
        self,
        *,
        model: Target,
        target: Target,
        new_cache: Callable[[], CacheManager],
        trust_vocabulary: bool,
    ) -> None:
        if not trust_vocabulary:
            check_vocabulary(model, target, way_out=_TRUST)
        self.model = model
        self.traits = replace(self.traits, max_positions=model.gives.max_positions)
        self._cache = new_cache()
        self._vocab = min(model.vocab_size, target.vocab_size)
        # Tables of one family are padded to different sizes; the rows past the smaller are dead.
        ids = torch.arange(self._vocab, device=target.device)
        self._ids = None if self._vocab == target.vocab_size else ids
        self._feeding: Feeding | None = None

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._context = context
        self._feeding = None
        self._cache.open(0, columns=context.max_columns, device=self.model.device)
        self._cache.reach[0] = context.reach

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        logits = self._feed(frontier) if frontier.depth else self._catch_up(frontier)
        return [Proposal(logits=logits[:, : self._vocab], ids=self._ids, source="lm")]

    def observe(self, record: StepRecord) -> None:
        # The last accepted node may not have been fed; feeding it anew costs next to nothing.
        kept = record.path[:-1]
        levels = {} if self._feeding is None else self._feeding.levels
        slots = [
            levels[depth].slot_of(record.draft.origin[row])
            for depth, row in enumerate(kept, start=1)
            if depth in levels
        ]
        if slots:
            moved = any(len(level.nodes) > 1 for level in levels.values())
            self._cache.commit(torch.cat(slots), [len(slots)], moved=[moved])
        self._cache.discard(0)
        self._feeding = None

    def truncate(self, length: int) -> None:
        self._cache.truncate(0, min(self._cache.lengths[0], length - 1))

    def _catch_up(self, frontier: Frontier) -> Tensor:
        """[1, V] logits of the root, once the model has read everything up to it."""
        last, cache = self.model.vocab_size - 1, self._cache
        # Ids that a smaller table lacks are read as its last one, as in `_run`.
        pending = [min(token, last) for token in self._context.tokens[cache.lengths[0] :]]
        out = self.model.prefill(pending, cache)
        root = Level.of_root(frontier, out.logits)
        self._feeding = Feeding(cache, length=cache.lengths[0], root=root)
        return out.logits

    def _feed(self, frontier: Frontier) -> Tensor:
        """[F, V] logits of drafted nodes."""
        assert self._feeding is not None, "the root comes first"
        logits = self._feeding.feed(frontier, self._run)
        assert logits is not None, "the level above comes first"
        return logits

    def _run(self, rows: Rows, states: Tensor) -> Tensor:
        """[F, V] logits of rows of drafted nodes."""
        assert rows.tokens is not None
        rows = replace(rows, tokens=rows.tokens.clamp_max(self.model.vocab_size - 1))
        every = torch.arange(len(rows.slots), device=rows.slots.device)
        logits = self.model.forward(rows, self._cache, want=every).logits
        assert logits is not None
        return logits
