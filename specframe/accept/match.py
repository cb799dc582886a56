"""Sample the target's own token at the node; if a child holds it, go there, else emit it."""

from __future__ import annotations

from specframe.accept.base import RULES, AcceptRule, Explanation, Walk, refused_for
from specframe.capture.purity import pure
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.types import Draft, How, Verdict


@pure
@RULES.register("match")
class Match(AcceptRule):
    """Lossless for every drafter, tree, pruning and re-ranking, at any temperature.

    Equation: y = argmax_v p(v) / E_v with E exponential noise keyed by (seed, sequence, position,
    v), so one seed gives the autoregressive text token for token. At temperature 0, y = argmax p.
    Accepts with probability p(children) for placed children, all of it for coupled draws with
    draft = target. Needs no draft law. Papers: SpecInfer, arXiv 2305.09781 (naive sampling);
    coupling: Daliri et al., arXiv 2408.07978.
    """

    lossless: bool = True
    same_text: bool = True
    any_draft: bool = True
    reads: frozenset[How] = frozenset({"place", "iid", "wor", "coupled"})

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        walk = Walk(draft)
        for depth in range(draft.depth):
            token = laws.pick(walk.node, depth, rng, walk.open)
            walk.move(token, *walk.child_with(token))
        return walk.end(laws.pick(walk.node, draft.depth, rng, walk.open))

    def explain(self, draft: Draft, laws: Laws, rng: Streams, verdict: Verdict) -> Explanation:
        return refused_for(draft, verdict, "target chose")
