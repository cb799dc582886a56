"""No draft: the loop is plain autoregressive decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from specframe.drafter.base import DRAFTERS, Drafter, Growing
from specframe.lookup.foresight import Prospect
from specframe.types import Budget, Frontier, Proposal


@DRAFTERS.register("none")
class NoDraft(Drafter):
    """Proposes nothing, so every verify pass has one row and emits one token.

    The baseline, in the same loop with the same clock and counters. Lossless. Needs nothing.
    """

    drafts: ClassVar[bool] = False
    gives_laws: ClassVar[bool] = True  # without a draft there is nothing that lacks one
    has_native: ClassVar[bool] = True

    def growing(self, most: int) -> Growing:
        return Growing(fed=(), held=(), key=self, source=lambda fed, held: self.expand)

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        return []

    def prospects(self) -> Sequence[Prospect]:
        return []

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        return []
