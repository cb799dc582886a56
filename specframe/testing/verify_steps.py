"""One verify step on tabulated laws, enumerated: what rules are tested with.

`PathLaws` holds p or q at every path; `step_law` grows a draft with the real builder, judges it
with a rule, and walks every branch. A step is exact if its outcomes, continued by the target's
own law, follow the target's law: by induction the whole text then does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.drafting.builder import TreeBuilder
from specframe.law.sampling import Sampling, build_sampling
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.task.certify.enumeration import Law, branches, max_error
from specframe.testing.compositions import CPU, sampling_config
from specframe.types import Draft, Frontier, How, Proposal, Verdict

V = 3
CONTEXT = (0,)
Path = tuple[int, ...]
Grow = Callable[[TreeBuilder, "PathLaws"], Draft]


class PathLaws:
    """Laws [V] by drafted path (its last two tokens matter), from a seed or given for all paths."""

    def __init__(
        self, seed: int = 0, *, laws: Sequence[float] | None = None, size: int = V
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn((size + 1, size + 1, size), generator=generator, dtype=torch.float64)
        self.laws = (1.5 * logits).softmax(-1)
        self.size = size
        if laws is not None:
            self.laws = torch.tensor(laws, dtype=torch.float64).expand_as(self.laws)

    def at(self, path: Sequence[int]) -> Tensor:
        """[V] the law after a path."""
        before, last = [self.size, self.size, *path][-2:]
        return self.laws[before, last]

    def logits(self, paths: Sequence[Sequence[int]]) -> Tensor:
        """[n, V] log-laws."""
        return torch.stack([self.at(path) for path in paths]).log()

    def proposal(self, frontier: Frontier) -> Proposal:
        """Logits under a frontier."""
        # A dead node's path holds -1: anything will do there.
        return Proposal(logits=self.logits(frontier.paths.clamp_min(0).tolist()))

    def law(self, length: int, path: Path = ()) -> Law:
        """The exact law of `length` tokens after a path."""
        if length == 0:
            return {(): 1.0}
        found: Law = {}
        for token, p in enumerate(self.at(path).tolist()):
            if p > 0:
                rest = self.law(length - 1, (*path, token))
                found |= {(token, *tail): p * q for tail, q in rest.items()}
        return found


def plain_sampling(temperature: float = 1.0, **changes: object) -> Sampling:
    """Sampling at a temperature for the tables' vocabulary."""
    return build_sampling(
        sampling_config(temperature, **changes),
        prompt_length=1,
        eos=(),
        encode=None,
        vocabulary=V,
        device=CPU,
    )


def builder(rng: Streams, how: How, sampling: Sampling | None = None) -> TreeBuilder:
    """A builder under the one-token context."""
    return TreeBuilder(
        context=torch.tensor(CONTEXT),
        sampling=sampling or plain_sampling(),
        rng=rng,
        step=1,
        how=how,
    )


def row_paths(draft: Draft) -> list[Path]:
    """Drafted path of every row (of the root alone for dead ones)."""
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    paths: list[Path] = []
    for row, parent in enumerate(parents):
        paths.append(() if parent < 0 else (*paths[parent], tokens[row]))
    return paths


def laws_of(draft: Draft, target: PathLaws, sampling: Sampling | None = None) -> Laws:
    """Target laws at every row of a draft."""
    return Laws(
        draft=draft,
        logits=target.logits(row_paths(draft)),
        context=torch.tensor(CONTEXT),
        sampling=sampling or plain_sampling(),
    )


def emitted(verdict: Verdict) -> Path:
    """The tokens of a verdict."""
    return tuple(verdict.tokens[0, : int(verdict.count)].tolist())


def step_law(rule: AcceptRule, grow: Grow, target: PathLaws, source: PathLaws, how: How) -> Law:
    """Law of what one step emits (sequences of different lengths)."""
    sampling = plain_sampling()

    def run(rng: Streams) -> Path:
        draft = grow(builder(rng, how, sampling), source)
        return emitted(rule.decide(draft, laws_of(draft, target, sampling), rng))

    law: defaultdict[Path, float] = defaultdict(float)
    for tokens, probability in branches(run, max_branches=50_000):
        law[tokens] += probability
    assert math.isclose(math.fsum(law.values()), 1, abs_tol=1e-12)
    return dict(law)


def continued(law: Law, target: PathLaws, length: int) -> Law:
    """Outcomes of a step continued by the target's law to `length` tokens."""
    whole: defaultdict[Path, float] = defaultdict(float)
    for tokens, probability in law.items():
        for tail, p in target.law(length - len(tokens), tokens).items():
            whole[(*tokens, *tail)] += probability * p
    return dict(whole)


def step_error(
    rule: AcceptRule,
    grow: Grow,
    how: How,
    target: PathLaws | None = None,
    source: PathLaws | None = None,
) -> float:
    """How far one step is from exact, over sequences of 3 tokens."""
    target, source = target or PathLaws(0), source or PathLaws(1)
    law = step_law(rule, grow, target, source, how)
    return max_error(continued(law, target, 3), target.law(3))


def first_token_error(rule: AcceptRule, grow: Grow, how: How) -> float:
    """How far the law of the next token alone is from the target's, on a fixed pair of laws."""
    target, source = PathLaws(5), PathLaws(6)
    marginal: defaultdict[Path, float] = defaultdict(float)
    for tokens, probability in step_law(rule, grow, target, source, how).items():
        marginal[tokens[:1]] += probability
    return max_error(dict(marginal), target.law(1))


def chain(build: TreeBuilder, source: PathLaws) -> Draft:
    """Two tokens in a row."""
    frontier = build.root
    for _ in range(2):
        frontier = build.extend(frontier, source.proposal(frontier), 1)
    return build.build()


def siblings(build: TreeBuilder, source: PathLaws) -> Draft:
    """Two children of the root."""
    build.extend(build.root, source.proposal(build.root), 2)
    return build.build()


def second_branch(build: TreeBuilder, source: PathLaws) -> Draft:
    """Two children of the root; the later one has a child."""
    frontier = build.extend(build.root, source.proposal(build.root), 2)
    frontier = frontier.select(torch.tensor([1]))
    build.extend(frontier, source.proposal(frontier), 1)
    return build.build(pad_to=6)


def bushy(build: TreeBuilder, source: PathLaws) -> Draft:
    """Two children, the first with two children of its own."""
    frontier = build.extend(build.root, source.proposal(build.root), 2)
    frontier = frontier.select(torch.tensor([0]))
    build.extend(frontier, source.proposal(frontier), 2)
    return build.build()


SHAPES: dict[str, Grow] = {
    "chain": chain,
    "siblings": siblings,
    "second_branch": second_branch,
    "bushy": bushy,
}


def with_records(grow: Grow, change: Callable[..., object]) -> Grow:
    """A draft whose draw records are tampered with by `change(call) -> call`."""

    def tampered(build: TreeBuilder, source: PathLaws) -> Draft:
        draft = grow(build, source)
        assert draft.draws is not None
        return replace(draft, draws=tuple(change(call) for call in draft.draws))  # type: ignore[misc]

    return tampered


def keep_likely(build: TreeBuilder, source: PathLaws) -> Draft:
    """Two children of the root, of which those with q > 0.3 stay: chosen by value."""
    children = build.extend(build.root, source.proposal(build.root), 2)
    likely = source.at(())[children.tokens.clamp_min(0)] > 0.3
    build.prune(children.nodes[likely & children.alive])
    return build.build()
