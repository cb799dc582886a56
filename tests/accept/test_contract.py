"""What every acceptance rule owes, plugins included."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from specframe.accept.base import RULES, AcceptRule
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.law.streams import Streams
from specframe.types import Draft, How, Verdict
from tests.accept.steps import (
    SHAPES,
    Path,
    Table,
    builder,
    emitted,
    laws_of,
    plain_sampling,
    row_paths,
    step_error,
)

NAMES = RULES.names()
LOSSLESS = [name for name in NAMES if RULES.get(name).lossless]
SEEDS = range(6)


@lru_cache
def rule(name: str) -> AcceptRule:
    """A rule with the values of its own YAML."""
    return plan(compose([f"accept={name}", "target=toy", "drafter=lm"])).bound["accept"].make()


def hows(name: str) -> list[How]:
    """The kinds of draft that a rule can judge."""
    return sorted(RULES.get(name).reads)


CASES = [(name, how, shape) for name in NAMES for how in hows(name) for shape in SHAPES]


def drafted(how: How, shape: str, seed: int, temperature: float = 1.0) -> Draft:
    sampling = plain_sampling(temperature)
    return SHAPES[shape](builder(Streams(seed=seed), how, sampling), Table(seed + 1))


def check(verdict: Verdict, draft: Draft) -> None:
    """The shape of a verdict, and that its path is one of the draft's."""
    assert verdict.path.shape == (1, draft.depth)
    assert verdict.tokens.shape == (1, draft.depth + 1)
    assert verdict.count.shape == (1,)
    assert verdict.path.dtype == verdict.tokens.dtype == torch.int64
    count = int(verdict.count)
    assert count >= 1
    path, tokens = verdict.path[0].tolist(), verdict.tokens[0].tolist()
    assert all(row > 0 for row in path[: count - 1])
    assert all(token >= 0 for token in tokens[:count])
    assert all(row == -1 for row in path[count - 1 :])
    assert all(token == -1 for token in tokens[count:])
    parent = 0
    for row, token in zip(path[: count - 1], tokens, strict=False):
        assert int(draft.parents[row]) == parent
        assert int(draft.tokens[row]) == token
        assert bool(draft.alive[row]), "a dead row was walked"
        parent = row


@pytest.mark.parametrize(("name", "how", "shape"), CASES)
def test_a_verdict_is_a_path_and_one_token_more(name: str, how: How, shape: str) -> None:
    for seed in SEEDS:
        draft = drafted(how, shape, seed)
        laws = laws_of(draft, Table(0))
        verdict = rule(name).decide(draft, laws, Streams(seed=seed))
        check(verdict, draft)
        again = rule(name).decide(draft, laws_of(draft, Table(0)), Streams(seed=seed))
        assert emitted(again) == emitted(verdict), "a decision is a function of its streams"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_of_the_root_alone_emits_one_token(name: str, temperature: float) -> None:
    sampling = plain_sampling(temperature)
    for pad in (0, 4):
        draft = builder(Streams(seed=0), "place", sampling).build(pad_to=pad)
        verdict = rule(name).decide(draft, laws_of(draft, Table(0), sampling), Streams(seed=0))
        check(verdict, draft)
        assert int(verdict.count) == 1


@pytest.mark.parametrize("name", NAMES)
def test_dead_rows_are_never_walked(name: str) -> None:
    build = builder(Streams(seed=0), "place")
    every = torch.tensor([[0, 1, 2]])
    build.place(build.root, every, wanted=torch.zeros_like(every, dtype=torch.bool))
    draft = build.build(pad_to=8)
    for seed in SEEDS:
        verdict = rule(name).decide(draft, laws_of(draft, Table(0)), Streams(seed=seed))
        check(verdict, draft)
        assert int(verdict.count) == 1


@pytest.mark.parametrize(("name", "how", "shape"), CASES)
def test_no_token_of_probability_zero_is_emitted(name: str, how: How, shape: str) -> None:
    target = Table(laws=[0.0, 0.35, 0.65])
    for seed in SEEDS:
        draft = drafted(how, shape, seed)
        verdict = rule(name).decide(draft, laws_of(draft, target), Streams(seed=seed))
        assert 0 not in emitted(verdict)


@pytest.mark.parametrize(("name", "how", "shape"), CASES)
def test_inputs_are_left_as_they_were(name: str, how: How, shape: str) -> None:
    draft = drafted(how, shape, 0)
    laws = laws_of(draft, Table(0))
    before = copy.deepcopy(_tensors(draft)), laws.logits.clone()
    rule(name).decide(draft, laws, Streams(seed=0))
    assert all(map(torch.equal, before[0], _tensors(draft)))
    assert torch.equal(before[1], laws.logits)


def _tensors(draft: Draft) -> list[Tensor]:
    holders: Sequence[object] = [draft, *(draft.draws or ())]
    values = [getattr(one, field.name) for one in holders for field in fields(one)]  # type: ignore[arg-type]
    return [value for value in values if isinstance(value, Tensor)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("name", "how", "shape"), CASES)
def test_an_explanation_is_of_what_was_refused(
    name: str, how: How, shape: str, temperature: float
) -> None:
    """No accepted row has words, and where the walk stood every other child has."""
    sampling, said = plain_sampling(temperature), 0
    for seed in SEEDS:
        draft, rng = drafted(how, shape, seed, temperature), Streams(seed=seed)
        laws = laws_of(draft, Table(seed), sampling)
        verdict = rule(name).decide(draft, laws, rng)
        explanation = rule(name).explain(draft, laws, rng, verdict)
        if explanation is None:
            pytest.skip(f"accept={name} has no words for what it refuses")
        words = explanation.words(explanation.values.tolist(), str)
        path = [row for row in verdict.path[0].tolist() if row >= 0]
        assert not words.keys() & {0, *path}
        assert all(words.values())
        children = {row for row in range(1, draft.num_rows) if draft.alive[row]} - {*path}
        if name != "typical":  # which judges every node, not one path
            stood = {0, *path}
            assert words.keys() == {row for row in children if int(draft.parents[row]) in stood}
        else:
            assert words.keys() <= children
        for ratio, coin in re.findall(
            r"ratio (\S+) < coin (\S+?)(?:,|$)", " ".join(words.values())
        ):
            assert float(ratio) <= float(coin)
        said += len(words)
    assert said, "something was refused"


@pytest.mark.parametrize("name", LOSSLESS)
def test_temperature_zero_is_greedy(name: str) -> None:
    target, sampling = Table(0), plain_sampling(0.0)
    greedy: Path = ()
    for _ in range(3):
        greedy = (*greedy, int(target.at(greedy).argmax()))
    lengths = set()
    for how in hows(name):
        for shape in SHAPES:
            for source in (target, Table(1), Table(2)):
                build = builder(Streams(seed=0), how, sampling)
                draft = SHAPES[shape](build, source)
                laws = laws_of(draft, target, sampling)
                tokens = emitted(rule(name).decide(draft, laws, Streams(seed=0)))
                assert tokens == greedy[: len(tokens)]
                lengths.add(len(tokens))
    assert lengths == {1, 2, 3}, "some drafts must be refused and some kept whole"


@pytest.mark.parametrize("name", NAMES)
def test_a_path_that_is_not_the_first_branch_is_found(name: str) -> None:
    target, sampling = Table(laws=[0.1, 0.2, 0.7]), plain_sampling(0.0)
    build = builder(Streams(seed=0), "place", sampling)
    children = build.place(build.root, torch.tensor([[0, 1, 2]]))
    build.place(children, torch.tensor([[0, 1], [2, 0], [0, 2]]))
    draft = build.build()
    verdict = rule(name).decide(draft, laws_of(draft, target, sampling), Streams(seed=0))
    check(verdict, draft)
    path = [row_paths(draft)[row] for row in verdict.path[0].tolist()]
    assert path == [(2,), (2, 2)]
    assert emitted(verdict) == (2, 2, 2)


@pytest.mark.parametrize(
    ("name", "how", "shape"),
    [case for case in CASES if case[0] in LOSSLESS and case[1] != "coupled"],
)
def test_a_rule_that_calls_itself_lossless_is(name: str, how: How, shape: str) -> None:
    assert step_error(rule(name), SHAPES[shape], how) < 1e-12
