"""The only maker of draft nodes: it owns the draft's randomness and the laws of its draws.

Because nobody else makes nodes, the draw table is right by construction: a law is stored before any
draw from it, draws keep their order, and placed children are marked as such.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.sampling import Sampling
from specframe.streams import Streams
from specframe.types import Draft, DrawCall, Frontier, How, Proposal


class TreeBuilder:
    """Grows one draft under the root of `context [T]` (its last token).

    how: how children are made from logits (`tree.proposal`, resolved). step keys the draft stream.
    """

    def __init__(
        self, *, context: Tensor, sampling: Sampling, rng: Streams, step: int, how: How
    ) -> None:
        self._context = context
        self._sampling = sampling
        self._rng = rng
        self._step = step
        self._how = how
        self._levels: list[Frontier] = []
        self._calls: list[DrawCall] = []
        self._kept: Tensor | None = None
        self._count = 0
        self.root = self._root()

    @property
    def num_nodes(self) -> int:
        """Nodes made so far, the root included."""
        return self._count

    @property
    def num_rows(self) -> int:
        """Rows that the draft will have, padding apart."""
        return self._count if self._kept is None else 1 + len(self._kept)

    def nodes(self) -> Frontier:
        """Every node but the root, in order of ids (paths are left out)."""
        made = self._levels[1:]
        join = {
            name: torch.cat([getattr(level, name) for level in made])
            for name in ("nodes", "tokens", "parents", "alive", "scores")
        }
        return Frontier(paths=self._context.new_empty((len(join["nodes"]), 0)), depth=-1, **join)

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
        how = how or self._how
        if proposal.candidates is not None:
            scores = proposal.scores
            return self.place(
                frontier, proposal.candidates[:, :k], None if scores is None else scores[:, :k],
                wanted=wanted,
            )
        if proposal.drawn is not None:
            return self._record_drawn(frontier, proposal, k)
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
    ) -> Frontier:
        """Children tokens [F, k] (-1: none) put there without a draw; scores [F, k] <= 0 rank."""
        if scores is None:
            ranks = torch.arange(tokens.shape[1], device=tokens.device)
            scores = -torch.log2(ranks.double() + 2).expand(tokens.shape)
        if wanted is not None:
            tokens = torch.where(wanted, tokens, -1)
        children = self._add(frontier, tokens, scores.clamp_max(0), tokens >= 0)
        self._calls.append(
            DrawCall(
                depth=frontier.depth,
                how="place",
                parents=frontier.nodes,
                nodes=children.nodes.view(tokens.shape),
                tokens=tokens,
            )
        )
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
        law = self._law(frontier, proposal)  # [F, Vd]
        indices, real = self._draw_indices(frontier, proposal, law, k, how)
        if wanted is not None:
            real = real & wanted
        return self._record(frontier, proposal, law, indices, real, how)

    def prune(self, keep: Tensor) -> None:
        """Only the nodes `keep [n]` (ids, the root left out) become rows of the draft.

        Choosing by values is for placed nodes, or any nodes under accept=match.
        """
        self._kept = keep.sort().values

    def build(self, *, pad_to: int = 0) -> Draft:
        """The draft, with dead rows appended up to `pad_to` rows."""
        levels = self._levels
        made = {
            name: torch.cat([getattr(level, name) for level in levels])
            for name in ("tokens", "parents", "alive")
        }
        depths = torch.cat([torch.full_like(level.nodes, level.depth) for level in levels])
        parents, origin = made["parents"], torch.arange(self._count, device=depths.device)
        row_of = origin
        if self._kept is not None:
            origin = torch.cat([origin[:1], self._kept])
            row_of = torch.full_like(depths, -1)
            row_of[origin] = torch.arange(len(origin), device=origin.device)
            parents = torch.where(parents >= 0, row_of[parents.clamp_min(0)], parents)[origin]
        alive = made["alive"][origin]
        dead = max(0, pad_to - len(origin))
        pad = torch.nn.functional.pad
        return Draft(
            tokens=pad(made["tokens"][origin].clamp_min(0), (0, dead)),
            parents=pad(torch.where(alive, parents, -1), (0, dead), value=-1),
            alive=pad(alive, (0, dead)),
            depths=pad(torch.where(alive, depths[origin], 0), (0, dead)),
            origin=pad(origin, (0, dead), value=-1),
            row_of=row_of,
            depth=levels[-1].depth,
            chain=all(len(level) == 1 for level in levels),
            draws=self._draws(),
        )

    def _draws(self) -> tuple[DrawCall, ...] | None:
        drawn = any(call.how != "place" for call in self._calls)
        return tuple(self._calls) if drawn else None

    def _root(self) -> Frontier:
        context = self._context
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

    def _add(self, frontier: Frontier, tokens: Tensor, scores: Tensor, real: Tensor) -> Frontier:
        """New nodes tokens [F, k] with log-weights [F, k]; where not `real` they are dead."""
        width = tokens.shape[1]
        start, self._count = self._count, self._count + tokens.numel()
        alive = (frontier.alive[:, None] & real).reshape(-1)
        total = (frontier.scores[:, None] + scores.double()).reshape(-1)
        flat = tokens.reshape(-1)
        children = Frontier(
            nodes=torch.arange(start, self._count, device=tokens.device),
            tokens=flat,
            parents=frontier.nodes.repeat_interleave(width),
            alive=alive,
            scores=torch.where(alive, total, -torch.inf),
            paths=torch.cat([frontier.paths.repeat_interleave(width, 0), flat[:, None]], dim=1),
            depth=frontier.depth + 1,
        )
        self._levels.append(children)
        return children

    def _processed(self, frontier: Frontier, proposal: Proposal) -> Tensor:
        """Scores [F, Vd] after the processors, each node with its own prefix."""
        assert proposal.logits is not None
        logits, ids = proposal.logits, proposal.ids
        if not self._sampling.path_dependent:
            return self._sampling.scores(frontier.paths, logits)
        prefix = torch.cat([self._context.expand(len(frontier), -1), frontier.paths], dim=1)
        if ids is None:
            return self._sampling.scores(prefix, logits)
        # Processors index by target ids, so the scores visit the target's vocabulary.
        size = self._sampling.vocabulary
        wide = logits.new_full((len(frontier), size), -torch.inf).index_copy(1, ids, logits)
        return self._sampling.scores(prefix, wide).index_select(1, ids)

    def _law(self, frontier: Frontier, proposal: Proposal) -> Tensor:
        return self._sampling.warp(self._processed(frontier, proposal), frontier.nodes[:, None])

    def _place_best(
        self, frontier: Frontier, proposal: Proposal, k: int, wanted: Tensor | None
    ) -> Frontier:
        """The k best by processed but unwarped scores: temperature must not change the ranking."""
        scores = self._processed(frontier, proposal).log_softmax(-1)
        best = scores.topk(k, dim=-1)
        tokens = best.indices if proposal.ids is None else proposal.ids[best.indices]
        # A banned token (probability zero) is no child.
        tokens = torch.where(best.values > -torch.inf, tokens, -1)
        return self.place(frontier, tokens, best.values, wanted=wanted)

    def _draw_indices(
        self, frontier: Frontier, proposal: Proposal, law: Tensor, k: int, how: How
    ) -> tuple[Tensor, Tensor]:
        """Draws [F, k] in Vd and which of them exist [F, k] (an empty law yields none)."""
        if how == "coupled":
            position = self._context.shape[0] + frontier.depth
            drawn = self._rng.coupled(law, proposal.ids, position, k)
            return drawn, law.gather(1, drawn) > 0
        rest, columns, real = law, [], []
        for order in range(k):
            exists = rest.sum(-1) > 0
            counters = (self._step, frontier.nodes, len(self._calls), order)
            index = self._rng.categorical("draft", rest, counters, frontier.alive & exists)
            columns.append(index)
            real.append(exists)
            if how == "wor":
                rest = rest.scatter(1, index[:, None], 0.0)
        return torch.stack(columns, dim=1), torch.stack(real, dim=1)

    def _record_drawn(self, frontier: Frontier, proposal: Proposal, k: int) -> Frontier:
        assert proposal.law is not None and proposal.drawn is not None
        drawn = proposal.drawn[:, :k]
        return self._record(frontier, proposal, proposal.law, drawn.clamp_min(0), drawn >= 0, "iid")

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
        first = _first_equal(tokens)  # [F, k] place of the first record with this token
        repeated = first != torch.arange(tokens.shape[1], device=tokens.device)
        scores = law.gather(1, indices).double().log()
        children = self._add(frontier, tokens, scores, real & ~repeated)
        nodes = children.nodes.view(tokens.shape).gather(1, first)
        self._calls.append(
            DrawCall(
                depth=frontier.depth,
                how=how,
                parents=frontier.nodes,
                nodes=nodes,
                tokens=tokens,
                indices=indices,
                law=law,
                ids=proposal.ids,
            )
        )
        return children


def _first_equal(tokens: Tensor) -> Tensor:
    """[F, k] for each entry the first place in its row that holds the same token."""
    return (tokens[:, :, None] == tokens[:, None, :]).int().argmax(-1)
