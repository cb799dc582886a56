"""A smaller language model drafts, with its own cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.drafter.base import DRAFTERS, Drafter
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

    needs = Needs(own_cache=True)
    gives_laws: ClassVar[bool] = True

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
        self.max_positions = model.gives.max_positions
        self._cache = new_cache()
        self._vocab = min(model.vocab_size, target.vocab_size)
        # Tables of one family are padded to different sizes; the rows past the smaller are dead.
        ids = torch.arange(self._vocab, device=target.device)
        self._ids = None if self._vocab == target.vocab_size else ids
        self._levels: list[_Level] = []

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._context = context
        self._levels = []
        self._cache.launcher = self.model.runtime.recording
        self._cache.reset(rows=context.max_slots, device=self.model.device)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        logits = self._feed(frontier) if frontier.depth else self._catch_up(frontier)
        return [Proposal(logits=logits[:, : self._vocab], ids=self._ids, source="lm")]

    def observe(self, record: StepRecord) -> None:
        # The last accepted node may not have been fed; feeding it anew costs next to nothing.
        kept = record.path[:-1]
        slots = [
            level.slot_of(record.draft.origin[row])
            for row, level in zip(kept, self._levels[1:], strict=False)
        ]
        moved = any(len(level.nodes) > 1 for level in self._levels)
        if slots:
            self._cache.commit(torch.cat(slots), len(slots), moved=moved)
        self._cache.discard()
        self._levels = []

    def truncate(self, length: int) -> None:
        self._cache.truncate(min(self._cache.length, length - 1))

    def _catch_up(self, frontier: Frontier) -> Tensor:
        last = self.model.vocab_size - 1
        # Ids that a smaller table lacks are read as its last one, as in `_feed`.
        pending = [min(token, last) for token in self._context.tokens[self._cache.length :]]
        out = self.model.prefill(pending, self._cache)
        root = torch.empty((1, 0), dtype=torch.long, device=self.model.device)
        self._levels = [_Level(nodes=frontier.nodes, path_slots=root)]
        return out.logits

    def _feed(self, frontier: Frontier) -> Tensor:
        cache, device = self._cache, self.model.device
        slots = cache.reserve(len(frontier))
        path_slots = torch.cat([self._levels[-1].above(frontier), slots[:, None]], dim=1)
        visible = torch.zeros((len(slots), cache.width), dtype=torch.bool, device=device)
        visible[:, : cache.length] = True
        visible.scatter_(1, path_slots, True)
        rows = Rows(
            tokens=frontier.tokens.clamp(0, self.model.vocab_size - 1),
            positions=torch.full_like(slots, cache.length - 1 + frontier.depth),
            slots=slots,
            visible=visible,
        )
        every = torch.arange(len(slots), device=device)
        logits = self.model.forward(rows, cache, want=every).logits
        assert logits is not None
        self._levels.append(_Level(nodes=frontier.nodes, path_slots=path_slots))
        return logits


class _Level:
    """Nodes fed together: ids [F] and the slots of the path down to each [F, depth]."""

    def __init__(self, *, nodes: Tensor, path_slots: Tensor) -> None:
        self.nodes = nodes
        self.path_slots = path_slots

    def above(self, frontier: Frontier) -> Tensor:
        """[F', depth] path slots of the parents of a frontier one level down."""
        parent = (frontier.parents[:, None] == self.nodes).int().argmax(1)
        return self.path_slots[parent]

    def slot_of(self, node: Tensor) -> Tensor:
        """[1] slot of a node of this level."""
        place = (self.nodes == node).int().argmax(0, keepdim=True)
        return self.path_slots[place, -1]
