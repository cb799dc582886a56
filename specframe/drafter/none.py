"""No draft: the loop is plain autoregressive decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specframe.capture.capturable import CapturableDraft
from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.lookup.foresight import Prospect
from specframe.types import Budget, Frontier, Proposal


@DRAFTERS.register("none")
class NoDraft(Drafter):
    """Proposes nothing, so every verify pass has one row and emits one token.

    The baseline, in the same loop with the same clock and counters. Lossless. Needs nothing.
    """

    # Without a draft there is nothing that lacks a law.
    traits = Traits(drafts=False, laws="logits", native=True)

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        return []

    def prospects(self) -> Sequence[Prospect]:
        return []

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        return []

    def capturable(self, max_expanded: int) -> CapturableDraft:
        return CapturableDraft(inputs=(), buffers=(), key=self, source=lambda *_: self.expand)
