"""The only maker of draft nodes: it owns the draft's randomness and the laws of its draws.

Because nobody else makes nodes, the draw table is right by construction: a law is stored before any
draw from it, draws keep their order, and placed children are marked as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specframe.drafting.assembly import assembled
from specframe.drafting.draws import Drawing, meet
from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.types import Draft, DrawCall, Frontier, How, Proposal


class TreeBuilder:
    """Grows one draft under the root of `context [T]` (its last token).

    how: how children are made from logits (`tree.proposal`, resolved). step keys the draft stream
    (see `Drawing`).
    """

    def __init__(
        self, *, context: Tensor, sampling: Sampling, rng: Streams, step: int | Tensor, how: How
    ) -> None:
        self.context, self.sampling, self.rng, self.how = context, sampling, rng, how
        self._drawing = Drawing(context=context, sampling=sampling, rng=rng, step=step)
        self._levels: list[Frontier] = []
        self._calls: list[DrawCall] = []
        self._kept: Tensor | None = None
        self._takes_aux = True
        self._grown: Draft | None = None
        self._count = 0
        self.root = self._root()

    @property
    def num_nodes(self) -> int:
        """Nodes made so far, the root included."""
        return self._count

    @property
    def num_rows(self) -> int:
        """Rows that the draft will have, padding apart."""
        if self._grown is not None:
            return self._grown.num_rows
        return self._count if self._kept is None else 1 + len(self._kept)

    def nodes(self) -> Frontier:
        """Every node but the root, in order of ids (paths are left out)."""
        made = self._levels[1:]
        join = {
            name: torch.cat([getattr(level, name) for level in made])
            for name in ("nodes", "tokens", "parents", "alive", "scores")
        }
        return Frontier(paths=self.context.new_empty((len(join["nodes"]), 0)), depth=-1, **join)

    def extend(
        self,
        frontier: Frontier,
        proposal: Proposal,
        k: int,
        *,
        wanted: Tensor | None = None,
        how: How | None = None,
    ) -> Frontier:
        """Give each node of `frontier` up to k children; returns all F * k of them, flattened.

        Candidates are placed, logits are placed or drawn as `how` (default `tree.proposal`) says.
        wanted [F, k] bool leaves places out; it must be known before any value is seen.
        """
        k = min(k, proposal.width)
        how = how or self.how
        if proposal.candidates is not None:
            scores = None if proposal.scores is None else proposal.scores[:, :k]
            tokens = proposal.candidates[:, :k]
            return self.place(frontier, tokens, scores, wanted=wanted, offer=proposal)
        if proposal.drawn is not None:
            return self._record_drawn(frontier, proposal, k, wanted)
        if how == "place":
            return self._place_best(frontier, proposal, k, wanted)
        return self.draw(frontier, proposal, k, how, wanted=wanted)

    def place(
        self,
        frontier: Frontier,
        tokens: Tensor,
        scores: Tensor | None = None,
        *,
        wanted: Tensor | None = None,
        offer: Proposal | None = None,
    ) -> Frontier:
        """Children tokens [F, k] (-1: none) put there without a draw; scores [F, k] <= 0 rank."""
        given = scores
        if scores is None:
            ranks = torch.arange(tokens.shape[1], device=tokens.device)
            scores = -torch.log2(ranks.double() + 2).expand(tokens.shape)
        if wanted is not None:
            tokens = torch.where(wanted, tokens, -1)
        children, nodes = self._add(frontier, tokens, scores.clamp_max(0))
        call = DrawCall(
            depth=frontier.depth,
            how="place",
            parents=frontier.nodes,
            nodes=nodes,
            tokens=tokens,
            scores=given,
            wanted=wanted,
            source="" if offer is None else offer.source,
            width=tokens.shape[1] if offer is None else offer.width,
        )
        self._calls.append(call)
        return children

    def draw(
        self,
        frontier: Frontier,
        proposal: Proposal,
        k: int,
        how: How,
        *,
        wanted: Tensor | None = None,
    ) -> Frontier:
        """k draws per node from the processed law of proposal.logits, in draw order.

        iid: with replacement, a repeat meets the first node; wor: without; coupled: the k best
        under the target noise. Draws from an exhausted law are no draws.
        """
        law = self._drawing.law(frontier, proposal)  # [F, Vd]
        call = len(self._calls)
        indices, real = self._drawing.draw(frontier, law, proposal.ids, k, how=how, call=call)
        if wanted is not None:
            real = real & wanted
        return self._record(frontier, proposal, law, indices, real, how)

    def prune(self, keep: Tensor) -> None:
        """Only the nodes `keep [n]` (ids, the root left out) become rows of the draft.

        Choosing by values is for placed nodes, or any nodes under accept=match.
        """
        self._kept = keep.sort().values

    def chain(self, tokens: Sequence[int]) -> None:
        """Place tokens below the root, each under the one before."""
        frontier = self.root
        for token in tokens:
            frontier = self.place(frontier, self.context.new_tensor([[token]]))

    def leave_out_aux(self) -> None:
        """The draft goes without the drafter's auxiliary rows."""
        self._takes_aux = False

    def take(self, draft: Draft) -> None:
        """The draft was grown and padded elsewhere, from this builder's context."""
        self._grown = draft

    def build(self, *, pad_to: int = 0) -> Draft:
        """The draft, with dead rows appended up to `pad_to` rows."""
        if self._grown is not None:
            return self._grown
        calls = tuple(self._calls)
        draft = assembled(self._levels, calls, rows=self._kept, pad_to=pad_to)
        return replace(draft, takes_aux=self._takes_aux)

    def _root(self) -> Frontier:
        context = self.context
        zero = context.new_zeros(1)
        root = Frontier(
            nodes=zero,
            tokens=context[-1:],
            parents=zero - 1,
            alive=torch.ones_like(zero, dtype=torch.bool),
            scores=torch.zeros_like(zero, dtype=torch.float64),
            paths=context.new_empty((1, 0)),
            depth=0,
        )
        self._levels.append(root)
        self._count = 1
        return root

    def _add(self, frontier: Frontier, tokens: Tensor, scores: Tensor) -> tuple[Frontier, Tensor]:
        """New nodes tokens [F, k] (-1: none) with log-weights [F, k], and the node [F, k] that each
        record meets: a token that its parent has already leads to the elder node, and the new one
        is dead."""
        width = tokens.shape[1]
        start, self._count = self._count, self._count + tokens.numel()
        fresh = torch.arange(start, self._count, device=tokens.device).view(tokens.shape)
        met = meet(self._levels, frontier, tokens, fresh)
        alive = (frontier.alive[:, None] & (tokens >= 0) & (met == fresh)).reshape(-1)
        total = (frontier.scores[:, None] + scores.double()).reshape(-1)
        flat = tokens.reshape(-1)
        children = Frontier(
            nodes=fresh.reshape(-1),
            tokens=flat,
            parents=frontier.nodes.repeat_interleave(width),
            alive=alive,
            scores=torch.where(alive, total, -torch.inf),
            paths=torch.cat([frontier.paths.repeat_interleave(width, 0), flat[:, None]], dim=1),
            depth=frontier.depth + 1,
        )
        self._levels.append(children)
        return children, met

    def _place_best(
        self, frontier: Frontier, proposal: Proposal, k: int, wanted: Tensor | None
    ) -> Frontier:
        """The k best by processed but unwarped scores: temperature must not change the ranking."""
        scores = self._drawing.scores(frontier, proposal).log_softmax(-1)
        best = scores.topk(k, dim=-1)
        tokens = best.indices if proposal.ids is None else proposal.ids[best.indices]
        # A banned token (probability zero) is no child.
        tokens = torch.where(best.values > -torch.inf, tokens, -1)
        return self.place(frontier, tokens, best.values, wanted=wanted, offer=proposal)

    def _record_drawn(
        self, frontier: Frontier, proposal: Proposal, k: int, wanted: Tensor | None
    ) -> Frontier:
        assert proposal.law is not None and proposal.drawn is not None
        drawn = proposal.drawn[:, :k]
        real = drawn >= 0 if wanted is None else (drawn >= 0) & wanted
        return self._record(frontier, proposal, proposal.law, drawn.clamp_min(0), real, "iid")

    def _record(
        self,
        frontier: Frontier,
        proposal: Proposal,
        law: Tensor,
        indices: Tensor,
        real: Tensor,
        how: How,
    ) -> Frontier:
        tokens = indices if proposal.ids is None else proposal.ids[indices]
        tokens = torch.where(real, tokens, -1)
        scores = law.gather(1, indices).double().log()
        children, nodes = self._add(frontier, tokens, scores)
        call = DrawCall(
            depth=frontier.depth,
            how=how,
            parents=frontier.nodes,
            nodes=nodes,
            tokens=tokens,
            indices=indices,
            law=law,
            ids=proposal.ids,
            source=proposal.source,
            width=proposal.width,
        )
        self._calls.append(call)
        return children
