"""Keep drafted tokens that are typical of the target's law, not only the likeliest ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from specframe.accept.base import RULES, AcceptRule, Explanation, Show
from specframe.capture.purity import pure
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.registry import Range
from specframe.types import Draft, How, Verdict


@pure
@RULES.register("typical")
class Typical(AcceptRule):
    """Lossy: trades agreement with the target's law for longer accepted paths.

    Equation: keep x after a node of posterior p if p(x) > min(epsilon, delta * exp(-H(p))), H in
    nats; a path is kept as far as all its tokens are; among the longest the likeliest wins.
    At temperature > 0, p is the sampling law and the bonus token is sampled from it; at 0, p is
    taken at `temperature` and the bonus token is the arg max.
    Judges all nodes, so it makes N laws a step; with path-dependent processors level by level.
    Paper: Medusa, arXiv 2401.10774 (delta = sqrt(epsilon)).
    """

    lossless: bool = False
    reads: frozenset[How] = frozenset({"place", "iid", "wor", "coupled"})

    def __init__(
        self,
        *,
        epsilon: Annotated[float, Range(0, 1)],
        delta: Annotated[float, Range(0, None)],
        temperature: Annotated[float, Range(1e-3, 100)],
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.temperature = temperature

    def host_reads(self, path_dependent: bool) -> int:
        """Which rows lie at which depth, where processors depend on the path."""
        return int(path_dependent)

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        scores = _all_scores(draft, laws)  # [N, V]
        posterior, sampling = self._posterior(draft, laws, scores), laws.sampling
        best = self._judge(draft, posterior).best  # [1]
        if sampling.greedy:
            last = scores[best].argmax(-1)
        else:
            position = laws.position + draft.depths[best]
            last = rng.target(posterior[best], position, draft.alive[best])
        return _verdict(draft, best, last)

    def explain(self, draft: Draft, laws: Laws, rng: Streams, verdict: Verdict) -> Explanation:
        posterior = self._posterior(draft, laws, _all_scores(draft, laws))
        judged = self._judge(draft, posterior)
        above = judged.typical[draft.parents.clamp_min(0)] & draft.alive & (draft.depths > 0)
        rows = torch.arange(draft.num_rows, device=draft.tokens.device)
        kept = (verdict.path[0, :, None] == rows).any(0)
        facts = (judged.probability, judged.threshold, judged.typical, above, kept)
        return Explanation(values=torch.cat([one.double() for one in facts]), words=_words)

    def _posterior(self, draft: Draft, laws: Laws, scores: Tensor) -> Tensor:
        """[N, V] what is held against the threshold."""
        if laws.sampling.greedy:
            return (scores / self.temperature).softmax(-1)
        return laws.sampling.warp(scores, draft.tokens[:, None])

    def _judge(self, draft: Draft, posterior: Tensor) -> _Judged:
        """All rows; the best is the deepest whose path is typical, of several the likeliest."""
        entropy = -(posterior * (posterior + 1e-5).log()).sum(-1)  # [N]
        threshold = (self.delta * (-entropy).exp()).clamp_max(self.epsilon)
        parents = draft.parents.clamp_min(0)
        probability = posterior[parents, draft.tokens]
        is_root = draft.depths == 0
        kept = is_root | (probability > threshold[parents])
        logp = torch.where(is_root, 0.0, probability.log())
        typical, total = kept & draft.alive, logp
        for _ in range(draft.depth):
            typical = kept & draft.alive & (is_root | typical[parents])
            total = torch.where(is_root, 0.0, logp + total[parents])
        depth = torch.where(typical, draft.depths, -1)
        longest = depth == depth.max()
        best = torch.where(longest, total, -torch.inf).argmax(0, keepdim=True)
        return _Judged(probability, threshold[parents], typical, best)


@dataclass(frozen=True)
class _Judged:
    """[N] each: probability of the row's token and the threshold at its parent, whether its whole
    path is typical; best [1] is the row that the path is kept down to."""

    probability: Tensor
    threshold: Tensor
    typical: Tensor
    best: Tensor


def _words(values: Sequence[float], show: Show) -> dict[int, str]:
    size = len(values) // 5
    said = {}
    for row in range(size):
        probability, threshold, typical, above, kept = values[row::size]
        if above and not typical:
            said[row] = f"below threshold {threshold:.3g}: {probability:.3g}"
        elif above and not kept:
            said[row] = "typical, but another path is longer or likelier"
    return said


def _all_scores(draft: Draft, laws: Laws) -> Tensor:
    """Processed scores [N, V] of every row, each with its own prefix."""
    if not laws.sampling.path_dependent:
        nodes = torch.arange(draft.num_rows, device=draft.tokens.device)
        return laws.scores(nodes, 0)
    levels: dict[int, list[int]] = {}
    for row, depth in enumerate(draft.depths.tolist()):
        levels.setdefault(depth, []).append(row)
    parts, order = [], []
    for depth, rows in levels.items():
        parts.append(laws.scores(torch.tensor(rows, device=draft.tokens.device), depth))
        order += rows
    place = torch.tensor(order, device=draft.tokens.device).argsort()
    return torch.cat(parts)[place]


def _verdict(draft: Draft, best: Tensor, last: Tensor) -> Verdict:
    """The path down to row best [1] and the token last [1] after it."""
    count = draft.depths[best]
    steps, node = [], best
    for depth in range(draft.depth, 0, -1):
        here = draft.depths[node] == depth
        steps.append(torch.where(here, node, -1))
        node = torch.where(here, draft.parents[node], node)
    path = torch.cat(steps[::-1]) if steps else best[:0]
    emitted = torch.where(path >= 0, draft.tokens[path.clamp_min(0)], -1)
    places = torch.arange(draft.depth + 1, device=best.device)
    tokens = torch.nn.functional.pad(emitted, (0, 1), value=-1)
    return Verdict(
        path=path[None],
        tokens=torch.where(places == count, last, tokens)[None],
        count=count + 1,
    )
