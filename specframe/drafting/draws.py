"""Draws of one draft: the processed law at each node, and indices drawn from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.types import Frontier, How, Proposal


class Drawing:
    """Laws and draws under the root of `context [T]`; `step` keys the draft stream.

    A step that is a tensor [] is the length of a context of which the root alone is known.
    """

    def __init__(
        self, *, context: Tensor, sampling: Sampling, rng: Streams, step: int | Tensor
    ) -> None:
        self._context = context
        self._sampling = sampling
        self._rng = rng
        self._step = step
        self._length = step if isinstance(step, Tensor) else context.shape[0]

    def scores(self, frontier: Frontier, proposal: Proposal) -> Tensor:
        """Scores [F, Vd] after the processors, each node with its own prefix."""
        assert proposal.logits is not None
        logits, ids = proposal.logits, proposal.ids
        if not self._sampling.path_dependent:
            return self._sampling.scores(frontier.paths, logits)
        prefix = torch.cat([self._context.expand(len(frontier), -1), frontier.paths], dim=1)
        # A dead node has no token (-1); its law is never used, but a processor must not index it.
        prefix = prefix.clamp_min(0)
        if ids is None:
            return self._sampling.scores(prefix, logits)
        # Processors index by target ids, so the scores visit the target's vocabulary.
        size = self._sampling.vocabulary
        wide = logits.new_full((len(frontier), size), -torch.inf).index_copy(1, ids, logits)
        return self._sampling.scores(prefix, wide).index_select(1, ids)

    def law(self, frontier: Frontier, proposal: Proposal) -> Tensor:
        """Probabilities [F, Vd] after processors and warpers."""
        return self._sampling.warp(self.scores(frontier, proposal), frontier.nodes[:, None])

    def draw(
        self, frontier: Frontier, law: Tensor, ids: Tensor | None, k: int, *, how: How, call: int
    ) -> tuple[Tensor, Tensor]:
        """Draws [F, k] in Vd from law [F, Vd], and which of them exist [F, k].

        ids [Vd] maps to target ids (None: same); an empty law yields no draw. call: number of the
        draw call within the draft.
        """
        if how == "coupled":
            position = self._length + frontier.depth
            drawn = self._rng.coupled(law, ids, position, k)
            return drawn, law.gather(1, drawn) > 0
        rest, columns, real = law, [], []
        for order in range(k):
            exists = rest.sum(-1) > 0
            counters = (self._step, frontier.nodes, call, order)
            index = self._rng.categorical("draft", rest, counters, frontier.alive & exists)
            columns.append(index)
            real.append(exists)
            if how == "wor":
                rest = rest.scatter(1, index[:, None], 0.0)
        return torch.stack(columns, dim=1), torch.stack(real, dim=1)


def meet(levels: Sequence[Frontier], frontier: Frontier, tokens: Tensor, fresh: Tensor) -> Tensor:
    """[F, k] the node that each record of tokens [F, k] meets: its fresh one, or the elder sibling
    with the same token, from this call or from an earlier one on the same nodes."""
    first = (tokens[:, :, None] == tokens[:, None, :]).int().argmax(-1)
    nodes = fresh.gather(1, first)
    for level in reversed(levels):
        if level.depth != frontier.depth + 1:
            continue
        family = (level.parents == frontier.nodes[:, None]) & level.alive  # [F, L]
        hit = family[:, None, :] & (level.tokens == tokens[:, :, None])  # [F, k, L]
        nodes = torch.where(hit.any(-1), level.nodes[hit.int().argmax(-1)], nodes)
    return nodes
