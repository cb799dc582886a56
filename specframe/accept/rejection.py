"""Test each draw against the target's law, in draw order, with the draw's own law."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from specframe.accept.base import RULES, AcceptRule, Walk
from specframe.laws import Laws
from specframe.streams import Streams
from specframe.types import Draft, DrawCall, How, Verdict

_EMPTY = 1e-12  # residual mass below this is rounding of a residual that is exactly zero


@RULES.register("rejection")
class Rejection(AcceptRule):
    """Speculative sampling, recursive over siblings. Lossless; needs the drafts' laws.

    Equation: r_1 = p; for draws x_1, x_2, ... of a node in order, accept x_j if
    u < r_j(x_j) / q_j(x_j), else r_{j+1} = normalise(max(r_j - q_j, 0)); if none is accepted emit
    from the last r. q_j is the law given the earlier draws: q itself (iid), or q without the tokens
    drawn before, renormalised (wor). A placed child has the one-hot law. A zero residual is p.
    Papers: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318; several candidates:
    SpecInfer, arXiv 2305.09781, and EAGLE, arXiv 2401.15077.
    """

    lossless: ClassVar[bool] = True
    reads: ClassVar[frozenset[How]] = frozenset({"place", "iid", "wor"})
    needs_laws: ClassVar[bool] = True
    preferred: ClassVar[How] = "wor"

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        walk = Walk(draft)
        if draft.draws is None:
            return self.walk_placed(walk, draft, laws, rng)
        calls = draft.draws
        for depth in range(draft.depth + 1):
            target_probs = laws.at(walk.node, depth).double()  # [1, V]
            trial = _Trial(walk, target_probs, rng, laws.position + depth)
            for call in calls:
                if call.depth == depth:
                    self.judge(trial, call, draft)
            walk.move(*trial.outcome())
        return walk.verdict()

    def walk_placed(self, walk: Walk, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        """All laws one-hot: testing the children in turn is to sample p once and look it up."""
        for depth in range(draft.depth + 1):
            counters = (laws.position + depth, -1)
            token = rng.categorical("accept", laws.at(walk.node, depth), counters, walk.open)
            walk.move(token, *walk.child_with(token))
        return walk.verdict()

    def judge(self, trial: _Trial, call: DrawCall, draft: Draft) -> None:
        """Put the records of `call` under the walk's node to the test, in order."""
        here = draft.row_of[call.parents] == trial.walk.node  # [F]
        place = here.int().argmax(0, keepdim=True)
        tokens, nodes = call.tokens[place], call.nodes[place]  # [1, K]
        law = None if call.law is None else call.law[place].double()
        for order in range(tokens.shape[1]):
            token = tokens[:, order]
            exists = here.any(0, keepdim=True) & (token >= 0)
            row = draft.row_of[nodes[:, order]]
            proposal_probs = self.proposal_probs(trial, call, law, token)
            trial.test(token, row, proposal_probs, exists & (row >= 0))
            if law is not None and call.how == "wor":
                assert call.indices is not None
                law = law.scatter(1, call.indices[place][:, order : order + 1], 0.0)

    def proposal_probs(
        self, trial: _Trial, call: DrawCall, law: Tensor | None, token: Tensor
    ) -> Tensor:
        """[1, V] the law that this record was drawn from."""
        zeros = torch.zeros_like(trial.rest)
        if law is None:
            return zeros.scatter(1, token.clamp_min(0)[:, None], 1.0)
        law = law / law.sum(-1, keepdim=True).clamp_min(torch.finfo(law.dtype).tiny)
        return law if call.ids is None else zeros.index_copy(1, call.ids, law)


class _Trial:
    """The tests at one node: `rest [1, V]` is what of the target's law is still to be covered."""

    def __init__(self, walk: Walk, target_probs: Tensor, rng: Streams, position: int) -> None:
        self.walk = walk
        self.rest = target_probs
        self._target_probs = target_probs
        self._rng = rng
        self._position = position
        self._tests = 0
        self._taken = torch.zeros_like(walk.open)
        self._child = torch.zeros_like(walk.node)
        self._token = torch.full_like(walk.node, -1)

    def test(self, token: Tensor, row: Tensor, proposal_probs: Tensor, exists: Tensor) -> None:
        """Accept token [1] (at `row`) with probability rest / proposal, or shrink the rest."""
        live = self.walk.open & ~self._taken & exists
        index = token.clamp_min(0)[:, None]
        ratio = self.rest.gather(1, index) / proposal_probs.gather(1, index)
        ratio = torch.nan_to_num(ratio[:, 0], nan=0.0).clamp(0.0, 1.0)
        counters = (self._position, self._tests)
        accepted = live & self._rng.coin(ratio, counters, live)
        self._tests += 1
        self._child = torch.where(accepted, row, self._child)
        self._token = torch.where(accepted, token, self._token)
        self._taken = self._taken | accepted
        left = (self.rest - proposal_probs).clamp_min(0)
        mass = left.sum(-1, keepdim=True)
        left = torch.where(mass > _EMPTY, left / mass.clamp_min(_EMPTY), self._target_probs)
        self.rest = torch.where((live & ~accepted)[:, None], left, self.rest)

    def outcome(self) -> tuple[Tensor, Tensor, Tensor]:
        """(token, child, exists): the accepted child, else a token from the rest."""
        live = self.walk.open & ~self._taken
        counters = (self._position, -1)
        recovered = self._rng.categorical("accept", self.rest, counters, live)
        return torch.where(self._taken, self._token, recovered), self._child, self._taken
