"""The target itself drafts with some of its sub-layers left out."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.drafter.layer_skip.search import SkipSearch, evenly, inner_parts
from specframe.drafting.feeding import TargetFeeding
from specframe.errors import ConfigError
from specframe.records import Context, StepRecord
from specframe.registry import Range
from specframe.target.base import Target
from specframe.types import Budget, Draft, Frontier, Needs, Proposal, Rows, TargetOutput

_PART = re.compile(r"(attention|mlp):(\d+)")


@DRAFTERS.register("layer_skip")
class LayerSkip(Drafter):
    """q(x) = the target's own law with a set of attention and MLP sub-layers left out.

    It reads the target's keys of the committed text; its own of drafted nodes are scratch, rolled
    back before the verify pass, which runs every layer.
    skip: sub-layers such as "attention:3" or "mlp:3"; null: whole blocks, `ratio` of those between
    the first and the last, at even distances.
    tries > 0 looks for a better set of that size while decoding: every `every` steps, once `window`
    tokens are emitted, a pass over the last `window` with a random set (each `bayes_every`-th one
    by a Gaussian process) counts how many of them it would have drafted; the best set so far
    drafts. It costs at most `tries` such passes a text, or in all if `keep` carries it on.
    Lossless under every lossless rule. Needs: partial layers; no cache and no weights of its own.
    Draft passes per step: one per expanded level. Target forwards per step: 1.
    Papers: Draft & Verify, arXiv 2309.08168 (sets by Bayesian optimisation beforehand; up to 1.99x
    with LLaMA-2); SWIFT, arXiv 2410.06916 (the search while decoding; 1.3x to 1.6x).
    """

    traits = Traits(
        needs=Needs(partial_layers=True),
        laws="logits",
        learns="from the passes so far, which decide on the layers it skips",
    )

    def __init__(
        self,
        *,
        skip: list[str] | None,
        ratio: Annotated[float, Range(0, 1)],
        tries: Annotated[int, Range(0, 100_000)],
        every: Annotated[int, Range(1, None)],
        window: Annotated[int, Range(1, 4096)],
        bayes_every: Annotated[int, Range(0, None)],
        keep: bool,
        seed: int,
        target: Target,
    ) -> None:
        blocks = target.num_layers
        self._start = evenly(blocks, ratio) if skip is None else checked(skip, target)
        self._parts, self._tries, self._bayes_every = inner_parts(blocks), tries, bayes_every
        self._every, self._window, self._keep, self._seed = every, window, keep, seed
        self._target = target
        self._feeding = TargetFeeding()
        self._search = self._new_search()
        self.warm: bool | None = False if keep else None

    @property
    def skip(self) -> frozenset[str]:
        """The sub-layers left out now."""
        return self._search.best

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._context = context
        assert context.cache is not None
        self._feeding.begin(context.cache)
        self._steps = 0
        self._tried: frozenset[str] | None = None
        if self._keep:
            self.warm = self._search.num_scores > 0
        else:
            self._search = self._new_search()

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        if frontier.depth == 0 and self._may_try():
            self._tried = self._search.next()
            if self._tried is not None:
                self._matched = self._match(self._tried)
        logits = self._feeding.feed(frontier, self._run)
        return [] if logits is None else [Proposal(logits=logits, source="layer_skip")]

    def _run(self, rows: Rows, states: Tensor) -> Tensor:
        """[F, V] logits of a frontier's nodes."""
        every = torch.arange(len(rows.slots), device=rows.slots.device)
        out = self._target.forward(rows, self._feeding.cache, skip=self.skip, want=every)
        assert out.logits is not None
        return out.logits

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        return self._feeding.give_back(draft)

    def readback(self, draft: Draft, out: TargetOutput) -> Tensor | None:
        return None if self._tried is None else self._matched

    def observe(self, record: StepRecord) -> None:
        self._steps += 1
        if self._tried is not None and record.readback:
            self._search.tell(self._tried, record.readback[0] / self._window)
        self._tried = None

    def remembered(self) -> Any:
        return copy.deepcopy(self._search) if self._keep else None

    def recall(self, memory: Any) -> None:
        self._search = copy.deepcopy(memory)

    def _new_search(self) -> SkipSearch:
        return SkipSearch(
            parts=self._parts,
            start=self._start,
            tries=self._tries,
            bayes_every=self._bayes_every,
            seed=self._seed,
        )

    def _may_try(self) -> bool:
        """Whether it is time, there is enough text of the target's own, and room for scratch."""
        cache, context = self._feeding.cache, self._context
        length = cache.lengths[0]
        room = cache.capacity is None or cache.capacity - length >= self._window
        emitted = len(context) - context.prompt_length
        idle = cache.extents[0] == length and self._tried is None
        return idle and room and emitted >= self._window and self._steps % self._every == 0

    def _match(self, skip: frozenset[str]) -> Tensor:
        """[1] int64: how many of the last `window` tokens are the likeliest without `skip`."""
        cache, size = self._feeding.cache, self._window
        start = cache.lengths[0] - size  # the rows before those see the committed keys
        fresh = cache.reserve([size])
        rows = Rows(
            tokens=self._context.ids[start : start + size],
            positions=start + fresh.columns,
            slots=fresh.slots,
            prefix=torch.full_like(fresh.columns, start),
        )
        every = fresh.columns
        out = self._target.forward(rows, cache, skip=skip, want=every)
        cache.discard(0)
        assert out.logits is not None
        return (out.logits.argmax(-1) == self._context.ids[start + 1 :]).sum().view(1)


def checked(skip: Sequence[str], target: Target) -> frozenset[str]:
    """The set of these sub-layers. Raises ConfigError for one that the target does not have."""
    for name in skip:
        found = _PART.fullmatch(name)
        if found is None or int(found[2]) >= target.num_layers:
            raise ConfigError(
                f"drafter.skip: {name!r} is no sub-layer of {target.name}; use attention:i or "
                f"mlp:i with i in 0 .. {target.num_layers - 1}"
            )
    return frozenset(f"{kind}:{int(block)}" for kind, block in (one.split(":") for one in skip))
