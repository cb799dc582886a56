"""Deliberately broken components: a check that does not notice them proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from specframe.accept.base import RULES, AcceptRule, Walk
from specframe.drafter.base import Drafter, Traits
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.lookup.foresight import Prospect, prospects_of
from specframe.records import Context, StepRecord
from specframe.types import Draft, DrawCall, Frontier, How, Proposal, TargetOutput, Verdict


class Careless(AcceptRule):
    """Accepts the first drafted child untested; without one, emits the second likeliest token.

    It calls itself lossless and is wrong with every drafter, `none` included.
    """

    title: ClassVar[str] = "a rule that keeps every drafted token"
    lossless: bool = True
    any_draft: bool = True
    reads: frozenset[How] = frozenset({"place", "iid", "wor", "coupled"})

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        walk = Walk(draft)
        for depth in range(draft.depth + 1):
            children = (draft.parents == walk.node) & draft.alive
            first, exists = children.int().argmax(0, keepdim=True), children.any(0, keepdim=True)
            second = laws.scores(walk.node, depth).topk(2, dim=-1).indices[:, 1]
            walk.move(torch.where(exists, draft.tokens[first], second), first, exists)
        return walk.verdict()


_Rejection: Any = RULES.get("rejection")


class NoResidual(_Rejection):
    """Rejection sampling that draws from p, not from the residual, once every draw is rejected."""

    title: ClassVar[str] = "rejection without the residual"

    def judge(self, trial, call: DrawCall, draft: Draft) -> None:  # type: ignore[no-untyped-def]
        target_probs = trial.rest
        super().judge(trial, call, draft)
        trial.rest = target_probs


class Shifted(Drafter):
    """Another drafter whose logits are shifted: each token gets those of the token before it."""

    title: ClassVar[str] = "a drafter that is off by one"

    def __init__(self, *, inner: Drafter) -> None:
        traits = inner.traits
        self.traits = Traits(needs=traits.needs, laws="logits", max_positions=traits.max_positions)
        self._inner = inner

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._inner.begin(context, out)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        proposals = self._inner.expand(frontier)
        return [replace(proposal, logits=_rolled(proposal.logits)) for proposal in proposals]

    def prospects(self) -> Sequence[Prospect]:
        return [replace(each, expand=self.expand) for each in prospects_of(self._inner)]

    def observe(self, record: StepRecord) -> None:
        self._inner.observe(record)

    def truncate(self, length: int) -> None:
        self._inner.truncate(length)


def _rolled(logits: Tensor | None) -> Tensor | None:
    return None if logits is None else logits.roll(1, dims=-1)
