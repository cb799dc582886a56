"""The suite of tests for acceptance rules."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from specframe.accept.base import RULES, AcceptRule
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.law.streams import Streams
from specframe.testing.defaults import ComponentContract
from specframe.testing.verify_steps import (
    SHAPES,
    Path,
    PathLaws,
    builder,
    emitted,
    laws_of,
    plain_sampling,
    row_paths,
    step_error,
)
from specframe.types import Draft, How, Verdict

SEEDS = range(6)


@lru_cache
def _rule(name: str, keys: tuple[str, ...]) -> AcceptRule:
    words = [f"accept={name}", *keys, "target=toy", "drafter=lm"]
    rule: AcceptRule = plan(compose(words)).bound["accept"].make()
    return rule


def drafted(how: How, shape: str, seed: int, temperature: float = 1.0) -> Draft:
    """A draft of one of the shapes, its laws and draws from a seed."""
    sampling = plain_sampling(temperature)
    return SHAPES[shape](builder(Streams(seed=seed), how, sampling), PathLaws(seed + 1))


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


def check_words(words: dict[int, str], verdict: Verdict, draft: Draft, *, walks: bool) -> None:
    """The words of an explanation stand at refused rows; ratios are below their coins."""
    path = [row for row in verdict.path[0].tolist() if row >= 0]
    assert not words.keys() & {0, *path}
    assert all(words.values())
    children = {row for row in range(1, draft.num_rows) if draft.alive[row]} - {*path}
    if walks:
        stood = {0, *path}
        assert words.keys() == {row for row in children if int(draft.parents[row]) in stood}
    else:
        assert words.keys() <= children
    for ratio, coin in re.findall(r"ratio (\S+) < coin (\S+?)(?:,|$)", " ".join(words.values())):
        assert float(ratio) <= float(coin)


def _tensors(draft: Draft) -> list[Tensor]:
    holders: Sequence[object] = [draft, *(draft.draws or ())]
    values = [getattr(one, field.name) for one in holders for field in fields(one)]  # type: ignore[arg-type]
    return [value for value in values if isinstance(value, Tensor)]


class RuleContract(ComponentContract):
    """What every acceptance rule does with drafts of each kind that it can judge."""

    judges_every_node: ClassVar[tuple[str, ...]] = ("typical",)  # rules that walk no path

    @pytest.fixture
    def rule(self, name: str) -> AcceptRule:
        """The rule with the values of its own YAML file."""
        return _rule(name, self.keys("accept"))

    def drafts(self, name: str, temperature: float = 1.0) -> Iterator[tuple[int, Draft]]:
        """(seed, draft) of each shape and each kind that the rule can judge."""
        for how in sorted(RULES.get(name).reads):
            for shape, seed in itertools.product(SHAPES, SEEDS):
                yield seed, drafted(how, shape, seed, temperature)

    def test_a_verdict_is_a_path_and_one_token_more(self, name: str, rule: AcceptRule) -> None:
        for seed, draft in self.drafts(name):
            verdict = rule.decide(draft, laws_of(draft, PathLaws(0)), Streams(seed=seed))
            check(verdict, draft)
            again = rule.decide(draft, laws_of(draft, PathLaws(0)), Streams(seed=seed))
            assert emitted(again) == emitted(verdict), "a decision is a function of its streams"

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_draft_of_the_root_alone_emits_one_token(
        self, rule: AcceptRule, temperature: float
    ) -> None:
        sampling = plain_sampling(temperature)
        for pad in (0, 4):
            draft = builder(Streams(seed=0), "place", sampling).build(pad_to=pad)
            laws = laws_of(draft, PathLaws(0), sampling)
            verdict = rule.decide(draft, laws, Streams(seed=0))
            check(verdict, draft)
            assert int(verdict.count) == 1

    def test_dead_rows_are_never_walked(self, rule: AcceptRule) -> None:
        build = builder(Streams(seed=0), "place")
        every = torch.tensor([[0, 1, 2]])
        build.place(build.root, every, wanted=torch.zeros_like(every, dtype=torch.bool))
        draft = build.build(pad_to=8)
        for seed in SEEDS:
            verdict = rule.decide(draft, laws_of(draft, PathLaws(0)), Streams(seed=seed))
            check(verdict, draft)
            assert int(verdict.count) == 1

    def test_no_token_of_probability_zero_is_emitted(self, name: str, rule: AcceptRule) -> None:
        target = PathLaws(laws=[0.0, 0.35, 0.65])
        for seed, draft in self.drafts(name):
            verdict = rule.decide(draft, laws_of(draft, target), Streams(seed=seed))
            assert 0 not in emitted(verdict)

    def test_inputs_are_left_as_they_were(self, name: str, rule: AcceptRule) -> None:
        for _, draft in self.drafts(name):
            laws = laws_of(draft, PathLaws(0))
            before = copy.deepcopy(_tensors(draft)), laws.logits.clone()
            rule.decide(draft, laws, Streams(seed=0))
            assert all(map(torch.equal, before[0], _tensors(draft)))
            assert torch.equal(before[1], laws.logits)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_an_explanation_is_of_what_was_refused(
        self, name: str, rule: AcceptRule, temperature: float
    ) -> None:
        """No accepted row has words, and where the walk stood every other child has. A rule
        without words for what it refuses explains nothing at all."""
        sampling = plain_sampling(temperature)
        num_words, num_silent = 0, 0
        for seed, draft in self.drafts(name, temperature):
            rng, laws = Streams(seed=seed), laws_of(draft, PathLaws(seed), sampling)
            verdict = rule.decide(draft, laws, rng)
            explanation = rule.explain(draft, laws, rng, verdict)
            if explanation is None:
                num_silent += 1
                continue
            words = explanation.words(explanation.values.tolist(), str)
            check_words(words, verdict, draft, walks=name not in self.judges_every_node)
            num_words += len(words)
        assert (num_words > 0) != (num_silent > 0), "something was refused"

    def test_temperature_zero_is_greedy(self, name: str, rule: AcceptRule) -> None:
        """For a lossless rule."""
        if not RULES.get(name).lossless:
            return
        target, sampling = PathLaws(0), plain_sampling(0.0)
        greedy: Path = ()
        for _ in range(3):
            greedy = (*greedy, int(target.at(greedy).argmax()))
        lengths = set()
        sources = (target, PathLaws(1), PathLaws(2))
        for how, shape, source in itertools.product(RULES.get(name).reads, SHAPES, sources):
            draft = SHAPES[shape](builder(Streams(seed=0), how, sampling), source)
            laws = laws_of(draft, target, sampling)
            tokens = emitted(rule.decide(draft, laws, Streams(seed=0)))
            assert tokens == greedy[: len(tokens)]
            lengths.add(len(tokens))
        assert lengths == {1, 2, 3}, "some drafts must be refused and some accepted whole"

    def test_a_path_that_is_not_the_first_branch_is_taken(self, rule: AcceptRule) -> None:
        target, sampling = PathLaws(laws=[0.1, 0.2, 0.7]), plain_sampling(0.0)
        build = builder(Streams(seed=0), "place", sampling)
        children = build.place(build.root, torch.tensor([[0, 1, 2]]))
        build.place(children, torch.tensor([[0, 1], [2, 0], [0, 2]]))
        draft = build.build()
        verdict = rule.decide(draft, laws_of(draft, target, sampling), Streams(seed=0))
        check(verdict, draft)
        path = [row_paths(draft)[row] for row in verdict.path[0].tolist()]
        assert path == [(2,), (2, 2)]
        assert emitted(verdict) == (2, 2, 2)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_rule_that_calls_itself_lossless_is(
        self, name: str, rule: AcceptRule, shape: str
    ) -> None:
        if RULES.get(name).lossless:
            for how in RULES.get(name).reads - {"coupled"}:
                assert step_error(rule, SHAPES[shape], how) < 1e-12
