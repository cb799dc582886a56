"""Test each draw against the target's law, in draw order, with the draw's own law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.accept.base import (
    RULES,
    AcceptRule,
    Explanation,
    Show,
    Walk,
    refused_for,
)
from specframe.capture.purity import pure
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.types import Draft, DrawCall, How, Verdict

_EMPTY = 1e-12  # residual mass below this is rounding of a residual that is exactly zero


@pure
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

    lossless: bool = True
    reads: frozenset[How] = frozenset({"place", "iid", "wor"})
    preferred: How = "wor"

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        walk = Walk(draft)
        if draft.draws is None:
            return self.walk_placed(walk, draft, laws, rng)
        self._walk_drawn(walk, draft, laws, rng)
        return walk.verdict()

    def explain(self, draft: Draft, laws: Laws, rng: Streams, verdict: Verdict) -> Explanation:
        """The same walk once more, with the same coins, and a note of every test."""
        if draft.draws is None:
            return refused_for(draft, verdict, "target drew")
        tests = self._walk_drawn(Walk(draft), draft, laws, rng)
        values = [draft.tokens[:0].double(), *(test.values(rng) for test in tests)]
        return Explanation(values=torch.cat(values), words=_words)

    def _walk_drawn(self, walk: Walk, draft: Draft, laws: Laws, rng: Streams) -> list[_Test]:
        """Walk to the end; returns all tests in order."""
        assert draft.draws is not None
        calls: tuple[DrawCall, ...] = draft.draws
        tests: list[_Test] = []
        for depth in range(draft.depth + 1):
            target_probs = laws.at(walk.node, depth).double()  # [1, V]
            trial = _Trial(walk, target_probs, rng, laws.position + depth)
            for call in calls:
                if call.depth == depth:
                    self.judge(trial, call, draft)
            walk.move(*trial.outcome())
            tests += trial.tests
        return tests

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


@dataclass(frozen=True)
class _Test:
    """One test as it was made: row [1], ratio [1], the coin's counters, whether the walk stood
    here, whether that counted (no sibling was accepted before), and its outcome."""

    row: Tensor
    ratio: Tensor
    counters: tuple[int | Tensor, int]
    here: Tensor
    live: Tensor
    accepted: Tensor

    def values(self, rng: Streams) -> Tensor:
        """[6] row, ratio, coin, here, live, accepted."""
        coin = rng.uniform("accept", *self.counters).to(self.row.device).view(1)
        facts = (self.row, self.ratio, coin, self.here, self.live, self.accepted)
        return torch.cat([one.double() for one in facts])


def _words(values: Sequence[float], show: Show) -> dict[int, str]:
    said: dict[int, list[str]] = {}
    kept = set()
    for start in range(0, len(values), 6):
        row, ratio, coin, here, live, accepted = values[start : start + 6]
        if accepted:
            kept.add(int(row))
        elif live:
            said.setdefault(int(row), []).append(f"ratio {ratio:.3g} < coin {coin:.3g}")
        elif here:
            said.setdefault(int(row), []).append("not tested, a sibling was accepted")
    return {row: ", then ".join(tests) for row, tests in said.items() if row not in kept}


class _Trial:
    """The tests at one node: `rest [1, V]` is what of the target's law is still to be covered."""

    def __init__(
        self, walk: Walk, target_probs: Tensor, rng: Streams, position: int | Tensor
    ) -> None:
        self.walk = walk
        self.rest = target_probs
        self._target_probs = target_probs
        self._rng = rng
        self._position = position
        self.tests: list[_Test] = []
        self._taken = torch.zeros_like(walk.open)
        self._child = torch.zeros_like(walk.node)
        self._token = torch.full_like(walk.node, -1)

    def test(self, token: Tensor, row: Tensor, proposal_probs: Tensor, exists: Tensor) -> None:
        """Accept token [1] (at `row`) with probability rest / proposal, or shrink the rest."""
        here = self.walk.open & exists
        live = here & ~self._taken
        index = token.clamp_min(0)[:, None]
        ratio = self.rest.gather(1, index) / proposal_probs.gather(1, index)
        ratio = torch.nan_to_num(ratio[:, 0], nan=0.0).clamp(0.0, 1.0)
        counters = (self._position, len(self.tests))
        accepted = live & self._rng.coin(ratio, counters, live)
        self.tests.append(_Test(row, ratio, counters, here, live, accepted))
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
