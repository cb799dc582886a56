"""Target laws at the nodes of a draft, made only where a rule asks, each with its own prefix."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.types import Draft


class Laws:
    """Lazy, memoised processed laws of one verify pass.

    logits [N, V] raw; context [T] the tokens up to and including the root. position: of the token
    that the root's law produces, [] where it must be no host integer.
    """

    def __init__(
        self,
        *,
        draft: Draft,
        logits: Tensor,
        context: Tensor,
        sampling: Sampling,
        position: Tensor | None = None,
    ) -> None:
        self.draft = draft
        self.logits = logits
        self.sampling = sampling
        self.position = context.shape[0] if position is None else position
        self._context = context
        self._scores: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._laws: dict[tuple[int, int], Tensor] = {}

    def prefix(self, nodes: Tensor, depth: int) -> Tensor:
        """[M, T + depth] tokens up to and including each of nodes [M], all `depth` deep."""
        context = self._context.expand(nodes.shape[0], -1)
        return torch.cat([context, self.draft.path_tokens(nodes, depth)], dim=1)

    def scores(self, nodes: Tensor, depth: int) -> Tensor:
        """Processed, unwarped scores [M, V] of nodes [M] (rows) of one host-known depth."""
        key = (id(nodes), depth)
        if key not in self._scores:
            logits = self.logits.index_select(0, nodes)
            ids = self.prefix(nodes, depth) if self.sampling.path_dependent else nodes[:, None]
            # The key holds its tensor, or its id could be given to another one.
            self._scores[key] = (self.sampling.scores(ids, logits), nodes)
        return self._scores[key][0]

    def at(self, nodes: Tensor, depth: int) -> Tensor:
        """Laws [M, V] at nodes [M] (rows), all `depth` deep; one-hot at temperature 0."""
        key = (id(nodes), depth)
        if key not in self._laws:
            self._laws[key] = self.sampling.warp(self.scores(nodes, depth), nodes[:, None])
        return self._laws[key]

    @property
    def is_empty(self) -> bool:
        """Whether nobody has asked for a law yet."""
        return not self._scores

    def log_probs(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """[D + 1] float64 log-probabilities of tokens [D + 1], each after its row of nodes [D + 1].

        Row d of nodes is d deep. Not memoised: a diagnostic changes nothing that others see.
        """
        sampling, depths = self.sampling, range(len(nodes))
        parts = [nodes[d : d + 1] for d in depths] if sampling.path_dependent else [nodes]
        laws = []
        for depth, rows in enumerate(parts):
            ids = self.prefix(rows, depth) if sampling.path_dependent else rows[:, None]
            scores = sampling.scores(ids, self.logits.index_select(0, rows))
            laws.append(sampling.log_law(scores, ids))
        return torch.cat(laws).gather(1, tokens.clamp_min(0)[:, None])[:, 0]

    def exhausted(self) -> Tensor:
        """[N] bool: rows at which a law was asked for and no token is left: every one is banned."""
        draft = self.draft
        rows = torch.arange(draft.num_rows, device=draft.tokens.device)
        found = torch.zeros_like(rows, dtype=torch.bool)
        for (_, depth), (scores, nodes) in self._scores.items():
            # A walk that has ended still asks, at a depth that is not its node's.
            empty = scores.isneginf().all(-1) & (draft.depths[nodes] == depth)
            found |= ((rows[:, None] == nodes) & empty).any(1)
        return found

    def is_spoilt(self) -> Tensor:
        """[] bool: processors gave NaN at some node that was asked for."""
        found = [scores.isnan().any() for scores, _ in self._scores.values()]
        return torch.stack(found).any() if found else self.logits.new_zeros((), dtype=torch.bool)

    def known(self) -> Tensor:
        """[N] probability of each row's token by the law at its parent, where a rule has asked for
        that law; NaN elsewhere. A diagnostic: no law is made for it."""
        draft, parents = self.draft, self.draft.parents
        found = torch.full(parents.shape, torch.nan, dtype=torch.float64, device=parents.device)
        for (_, depth), (_, nodes) in list(self._scores.items()):
            here = parents[:, None] == nodes  # [N, M]
            if self.sampling.path_dependent:
                # A walk that has ended still asks, at a depth that is not its node's.
                here = here & (draft.depths[nodes] == depth)
            probs = self.at(nodes, depth)[here.int().argmax(1), draft.tokens]
            found = torch.where(here.any(1) & found.isnan(), probs.double(), found)
        return found

    def all(self) -> Tensor:
        """Laws [N, V] of every row; only where no processor depends on the path."""
        assert not self.sampling.path_dependent, "laws.all() ignores prefixes"
        nodes = torch.arange(self.draft.num_rows, device=self.logits.device)
        return self.at(nodes, 0)

    def pick(self, nodes: Tensor, depth: int, rng: Streams, where: Tensor) -> Tensor:
        """[M] the target's own tokens after nodes [M]: arg max, or sampled with target noise.

        where [M] bool marks the nodes whose token matters.
        """
        if self.sampling.greedy:
            return self.scores(nodes, depth).argmax(-1)
        return rng.target(self.at(nodes, depth), self.position + depth, where)
