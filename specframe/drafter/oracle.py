"""Drafts the target's true continuation as often as it is told to, to measure everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from specframe.drafter.base import DRAFTERS, Drafter, Traits
from specframe.law.streams import Streams
from specframe.records import Context, TrueText
from specframe.registry import Range
from specframe.target.base import Target
from specframe.types import Frontier, Needs, Proposal, TargetOutput

Share = Annotated[float, Range(0, 1)]
_FLOOR = 1e-6  # the score of a place that is never right, so that it ranks last


@DRAFTERS.register("oracle")
class Oracle(Drafter):
    """Synthetic: it is told the text, so that engine, trees and runtimes can be measured.

    Under a node on the true path it offers len(ranks) tokens; with probability rates[d] (the last
    one below that depth) the true one is among them, at rank r with share ranks[r]. All others are
    wrong. So P(rank r at depth d is right) = rates[d] ranks[r], the table of `tree.planning`, and
    acceptance_length is 1 plus the sum over the tree's paths of the product along each; of a chain,
    1 + ranks[0] rates[0] + ranks[0]^2 rates[0] rates[1] + ... Scores are the logarithms of that
    table, so tree=dynamic ranks as a calibrated drafter would.
    Lossless under every lossless rule; placed, it gives no law. It knows the text of accept=match
    at any temperature, since the noise is keyed by position and token. That text is decoded in
    `begin`, with a cache of its own: prefill_s and total_s hold that time, decode_s does not; where
    the run leaves it (a lossy rule, a forced tail) the rest is looked up inside the step. Every
    report of its runs says `synthetic`. Needs: a second cache. Target forwards per step: 1.
    Source: none; a tool of this framework.
    """

    traits = Traits(needs=Needs(own_cache=True), synthetic=True)

    def __init__(
        self, *, rates: list[Share], ranks: list[Share], seed: int, truth: TrueText, target: Target
    ) -> None:
        if not rates or not ranks:
            raise ValueError("drafter.rates and drafter.ranks: give at least one number each")
        if not math.isclose(sum(ranks), 1.0, abs_tol=1e-6):
            raise ValueError(
                f"drafter.ranks={ranks} sum to {sum(ranks):g}; they are shares of 1, as [0.75,0.25]"
            )
        if len(ranks) >= target.vocab_size:
            raise ValueError(
                f"drafter.ranks has {len(ranks)} entries; {target.name} has "
                f"{target.vocab_size} tokens, which leaves at most {target.vocab_size - 1}"
            )
        self.rates, self.ranks, self.seed = rates, ranks, seed
        self._truth = truth
        self._vocab = target.vocab_size
        self._shares = torch.tensor(ranks, dtype=torch.float64, device=target.device).cumsum(0)
        self._places = torch.arange(len(ranks), device=target.device)

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._context = context
        self._streams = Streams(seed=self.seed, sequence=context.sequence)
        self._known: list[int] = []  # the true text, prompt included
        self._agreed = 0
        self._look_up(context.prompt_length)
        # More than this the run can never reach.
        while self._truth.room() > 0 and len(self._known) < context.max_columns and self._more():
            pass
        self._ids = torch.tensor(self._known, device=context.buffer.device)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        place = len(self._context) + frontier.depth
        if frontier.depth == 0:
            self._compare()
        while len(self._known) <= place and self._more():
            self._ids = torch.tensor(self._known, device=self._ids.device)
        if len(self._known) <= place:
            return []
        tokens = self._offered(frontier, self._ids[place])
        scores = [math.log(max(self._rate(frontier.depth) * share, _FLOOR)) for share in self.ranks]
        weights = torch.tensor(scores, dtype=torch.float64, device=tokens.device)
        return [Proposal(candidates=tokens, scores=weights.expand(tokens.shape), source="oracle")]

    def truncate(self, length: int) -> None:
        self._agreed = min(self._agreed, length)

    def _offered(self, frontier: Frontier, true: Tensor) -> Tensor:
        """[F, K] tokens under each node: at most one is the true one, the others are wrong."""
        context, depth = self._context, frontier.depth
        path = self._ids[len(context) : len(context) + depth]
        on_path = (frontier.paths == path).all(1)
        counters = (len(context), context.ids[-1], depth)
        draw = [self._streams.uniform("policy", *counters, kind) for kind in range(3)]
        right = on_path & (draw[0] < self._rate(depth))
        rank = (self._shares <= draw[1]).sum().clamp_max(len(self.ranks) - 1)
        # The vocabulary after the true token, in a circle, from a drawn place on.
        steps = 1 + ((draw[2] * (self._vocab - 1)).long() + self._places) % (self._vocab - 1)
        wrong = (true + steps) % self._vocab  # [K]
        chosen = right[:, None] & (self._places == rank)
        return torch.where(chosen, true, wrong)

    def _rate(self, depth: int) -> float:
        return self.rates[min(depth, len(self.rates) - 1)]

    def _compare(self) -> None:
        """Look the text up anew from where the run has left it."""
        context = self._context.tokens
        while self._agreed < min(len(context), len(self._known)):
            if context[self._agreed] != self._known[self._agreed]:
                break
            self._agreed += 1
        if self._agreed < len(context):
            self._look_up(len(context))
            self._ids = torch.tensor(self._known, device=self._ids.device)

    def _look_up(self, length: int) -> None:
        prompt = self._context.tokens[:length]
        self._known = prompt + self._truth.begin(prompt, sequence=self._context.sequence)
        self._agreed, self._ended = length, False

    def _more(self) -> bool:
        """Decode at least one more token of the text; False where it ends."""
        if self._ended:
            return False
        if self._truth.room() <= 0:  # the run asks for more than its settings said
            self._known += self._truth.begin(self._known, sequence=self._context.sequence)
            return True
        record = self._truth.step()
        self._known += record.tokens
        self._ended = record.finish_reason not in (None, "length")
        return True
