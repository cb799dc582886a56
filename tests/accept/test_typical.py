"""Typical acceptance follows its equation, and is as lossy as it says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specframe.accept.typical import Typical
from specframe.drafting.builder import TreeBuilder
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.testing.verify_steps import (
    Path,
    PathLaws,
    builder,
    chain,
    emitted,
    laws_of,
    plain_sampling,
    row_paths,
    step_error,
)
from specframe.types import Draft

EPSILON, DELTA = 0.09, 0.3


def rule(*, temperature: float = 0.7, epsilon: float = EPSILON, delta: float = DELTA) -> Typical:
    return Typical(epsilon=epsilon, delta=delta, temperature=temperature)


def placed(*paths: Path) -> Draft:
    """A draft of these paths, in order of length."""
    build: TreeBuilder = builder(Streams(seed=0), "place")
    frontier, known = build.root, [()]
    for depth in range(1, 1 + max(len(path) for path in paths)):
        level = [path for path in paths if len(path) == depth]
        parents = sorted({path[:-1] for path in level}, key=known.index)
        grid = [[path[-1] for path in level if path[:-1] == parent] for parent in parents]
        width = max(map(len, grid))
        tokens = torch.tensor([row + [-1] * (width - len(row)) for row in grid])
        frontier = frontier.select(torch.tensor([known.index(parent) for parent in parents]))
        frontier = build.place(frontier, tokens)
        known = [tuple(path) for path in frontier.paths.tolist()]
    return build.build()


def keeps(law: Tensor, token: int) -> bool:
    """The criterion, written down once more."""
    entropy = -sum(p * math.log(p) for p in law.tolist() if p > 0)
    return float(law[token]) > min(EPSILON, DELTA * math.exp(-entropy))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_is_kept_by_its_threshold(temperature: float) -> None:
    seen = set()
    for seed in range(30):
        target, sampling = PathLaws(seed), plain_sampling(temperature)
        law = target.at(())
        posterior = law if temperature else (law.log() / 0.7).softmax(-1)
        for token in range(3):
            laws = laws_of(placed((token,)), target, sampling)
            verdict = rule().decide(laws.draft, laws, Streams(seed=seed))
            kept = int(verdict.count) == 2
            assert kept == keeps(posterior, token)
            seen.add(kept)
    assert seen == {True, False}


def test_the_longest_kept_path_wins_and_of_those_the_likeliest() -> None:
    target = PathLaws(laws=[0.5, 0.3, 0.2])
    draft = placed((0,), (1,), (2,), (1, 1), (2, 0), (2, 2))
    verdict = rule().decide(draft, laws_of(draft, target), Streams(seed=0))
    # (2, 0) has 0.2 * 0.5, above 0.3 * 0.3 of (1, 1) and 0.2 * 0.2 of (2, 2).
    assert emitted(verdict)[:2] == (2, 0)


def test_a_kept_child_of_a_refused_node_does_not_count() -> None:
    target = PathLaws(laws=[0.9, 0.09, 0.01])
    draft = placed((2,), (2, 0))
    verdict = rule().decide(draft, laws_of(draft, target), Streams(seed=0))
    assert int(verdict.count) == 1


def test_the_last_token_is_the_arg_max_at_temperature_zero() -> None:
    target = PathLaws(3)
    draft = placed((0,), (1,), (2,))
    laws = laws_of(draft, target, plain_sampling(0.0))
    tokens = emitted(rule().decide(draft, laws, Streams(seed=0)))
    assert len(tokens) == 2
    assert tokens[0] == int(target.at(()).argmax())
    assert tokens[1] == int(target.at(tokens[:1]).argmax())


def test_the_last_token_is_sampled_with_the_target_noise_above_it() -> None:
    target = PathLaws(3)
    draft = placed((0,))
    last = set()
    for seed in range(20):
        rng = Streams(seed=seed)
        tokens = emitted(rule().decide(draft, laws_of(draft, target), rng))
        noise = rng.noise(len(tokens), torch.arange(3))
        assert tokens[-1] == int((target.at(tokens[:-1]) / noise).argmax())
        last.add(tokens[-1])
    assert len(last) > 1


def test_path_dependent_laws_are_judged_with_each_nodes_own_prefix() -> None:
    target = PathLaws(laws=[0.6, 0.25, 0.15])
    penalised = plain_sampling(1.0, repetition_penalty=4.0)
    draft = placed((0,), (1,), (0, 0), (0, 1), (1, 1))
    laws = laws_of(draft, target, penalised)
    scores = torch.stack(
        [
            penalised.scores(torch.tensor([[0, *path]]), laws.logits[row : row + 1])[0]
            for row, path in enumerate(row_paths(draft))
        ]
    )
    given = Laws(
        draft=draft, logits=scores, context=torch.tensor([0]), sampling=plain_sampling(1.0)
    )
    for seed in range(5):
        verdict = rule().decide(draft, laws, Streams(seed=seed))
        expected = rule().decide(draft, given, Streams(seed=seed))
        assert emitted(verdict) == emitted(expected)
    assert rule().host_reads(path_dependent=True) == 1
    assert rule().host_reads(path_dependent=False) == 0


@pytest.mark.parametrize("how", ["place", "iid", "wor"])
def test_it_is_lossy_and_says_so(how: str) -> None:
    assert not Typical.lossless
    assert step_error(rule(), chain, how) > 1e-2  # type: ignore[arg-type]


def test_an_epsilon_of_one_and_a_huge_delta_keep_nothing() -> None:
    draft = placed((0,), (1,), (2,))
    laws = laws_of(draft, PathLaws(0))
    verdict = rule(epsilon=1.0, delta=1e9).decide(draft, laws, Streams(seed=0))
    assert int(verdict.count) == 1


def test_words_are_the_threshold_and_the_probability() -> None:
    target = PathLaws(laws=[0.05, 0.25, 0.7])
    draft = placed((0,), (1,), (2,), (0, 2), (2, 0))
    laws = laws_of(draft, target)
    verdict = rule().decide(draft, laws, Streams(seed=0))
    explanation = rule().explain(draft, laws, Streams(seed=0), verdict)
    words = explanation.words(explanation.values.tolist(), str)
    rows = {path: row for row, path in enumerate(row_paths(draft))}
    law = target.at(())
    entropy = -(law * law.log()).sum()
    threshold = min(EPSILON, DELTA * math.exp(-float(entropy)))
    assert words[rows[0,]] == f"below threshold {threshold:.3g}: 0.05"
    assert words[rows[2, 0]] == f"below threshold {threshold:.3g}: 0.05"
    assert words[rows[1,]] == "typical, but another path is longer or likelier"
    assert rows[0, 2] not in words, "what is above it was refused"
