"""Match returns the autoregressive text, whatever was drafted."""

from __future__ import annotations

import pytest
import torch

from specframe.accept.match import Match
from specframe.drafting.builder import TreeBuilder
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.testing.verify_steps import (
    SHAPES,
    Grow,
    Path,
    PathLaws,
    V,
    builder,
    chain,
    emitted,
    keep_likely,
    laws_of,
    plain_sampling,
    step_error,
)
from specframe.types import Draft, How, Verdict

HOWS: tuple[How, ...] = ("place", "iid", "wor", "coupled")


def autoregressive(target: PathLaws, rng: Streams, count: int) -> Path:
    """What sampling token by token with the target noise gives."""
    tokens: Path = ()
    for place in range(count):
        probs = target.at(tokens)
        tokens = (*tokens, int((probs / rng.noise(1 + place, torch.arange(V))).argmax()))
    return tokens


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("grow", [*SHAPES.values(), keep_likely], ids=[*SHAPES, "pruned"])
def test_same_noise_same_text(grow: Grow, how: How) -> None:
    target, depths = PathLaws(0), set()
    for seed in range(12):
        rng = Streams(seed=seed)
        draft = grow(builder(rng, how), PathLaws(seed))
        tokens = emitted(Match().decide(draft, laws_of(draft, target), rng))
        assert tokens == autoregressive(target, rng, 3)[: len(tokens)]
        depths.add(len(tokens))
    assert max(depths) > 1, "no draft was accepted, so nothing was shown"


@pytest.mark.parametrize("how", ["place", "iid", "wor"])
@pytest.mark.parametrize("grow", [*SHAPES.values(), keep_likely], ids=[*SHAPES, "pruned"])
def test_one_step_is_exact(grow: Grow, how: How) -> None:
    assert step_error(Match(), grow, how) < 1e-12


def test_coupled_draws_of_a_perfect_draft_are_accepted_in_full() -> None:
    target = PathLaws(0)
    for seed in range(30):
        rng = Streams(seed=seed)
        draft = chain(builder(rng, "coupled"), target)
        assert int(Match().decide(draft, laws_of(draft, target), rng).count) == 3


def test_placed_children_are_accepted_with_their_target_probability() -> None:
    target, source, count, hits = PathLaws(5), PathLaws(6), 3000, 0
    draft = SHAPES["siblings"](builder(Streams(seed=0), "place"), source)
    laws = laws_of(draft, target)
    expected = float(target.at(())[draft.tokens[1:3]].sum())
    for seed in range(count):
        hits += int(Match().decide(draft, laws, Streams(seed=seed)).count) > 1
    assert abs(hits / count - expected) < 4 * (expected * (1 - expected) / count) ** 0.5


def test_temperature_zero_takes_the_arg_max_of_every_node() -> None:
    sampling, target = plain_sampling(0.0), PathLaws(0)
    draft = SHAPES["bushy"](builder(Streams(seed=0), "place", sampling), target)
    tokens = emitted(Match().decide(draft, laws_of(draft, target, sampling), Streams(seed=9)))
    greedy: Path = ()
    for _ in range(len(tokens)):
        greedy = (*greedy, int(target.at(greedy).argmax()))
    assert tokens == greedy
    assert len(tokens) == 3


class Trusting(Match):
    """Takes the first drafted token whenever the target gives it more than 0.1."""

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        root = torch.zeros(1, dtype=torch.long)
        if draft.num_rows > 1 and laws.at(root, 0)[0, draft.tokens[1]] > 0.1:
            return super().decide(draft, _Biased(laws), rng)
        return super().decide(draft, laws, rng)


class _Biased(Laws):
    """Laws whose pick at the root is the first drafted token."""

    def __init__(self, laws: Laws) -> None:
        self.__dict__ = laws.__dict__

    def pick(
        self, nodes: torch.Tensor, depth: int, rng: Streams, where: torch.Tensor
    ) -> torch.Tensor:
        return self.draft.tokens[1:2] if depth == 0 else super().pick(nodes, depth, rng, where)


@pytest.mark.parametrize("how", ["place", "iid", "wor"])
def test_control_a_drafted_token_that_is_trusted(how: How) -> None:
    assert step_error(Trusting(), chain, how) > 1e-2


def test_a_dead_twin_of_the_targets_token_is_not_walked() -> None:
    def grow(build: TreeBuilder) -> Draft:
        build.place(build.root, torch.tensor([[0, 1, 2]]), wanted=torch.tensor([[False] * 3]))
        return build.build(pad_to=6)

    draft = grow(builder(Streams(seed=0), "place"))
    for seed in range(10):
        verdict = Match().decide(draft, laws_of(draft, PathLaws(0)), Streams(seed=seed))
        assert verdict.path.tolist() == [[-1]]
