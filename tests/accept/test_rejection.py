"""Rejection is exact for every kind of draw, and each known way to bias it is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specframe.accept.rejection import Rejection
from specframe.drafting.builder import TreeBuilder
from specframe.law.streams import Stream, Streams
from specframe.task.certify.broken import NoResidual
from specframe.testing.verify_steps import (
    SHAPES,
    Grow,
    PathLaws,
    builder,
    bushy,
    chain,
    emitted,
    first_token_error,
    keep_likely,
    laws_of,
    plain_sampling,
    second_branch,
    siblings,
    step_error,
    step_law,
    with_records,
)
from specframe.types import Draft, DrawCall, How, Proposal

EXACT = 1e-12
DRAWN: tuple[How, ...] = ("iid", "wor")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", ["place", *DRAWN])
def test_one_step_is_exact(how: How, shape: str) -> None:
    assert step_error(Rejection(), SHAPES[shape], how) < EXACT


@pytest.mark.parametrize("how", ["place", *DRAWN])
@pytest.mark.parametrize(
    ("target", "source"),
    [
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),  # p == q: the residual is zero
        ([0.0, 0.0, 1.0], [0.2, 0.3, 0.5]),  # one-hot target
        ([0.2, 0.3, 0.5], [0.0, 0.0, 1.0]),  # one-hot draft
        ([0.0, 0.0, 1.0], [0.0, 1.0, 0.0]),  # disjoint
        ([0.0, 0.5, 0.5], [0.5, 0.5, 0.0]),  # supports overlap in part
        ([0.5, 0.5, 0.0], [0.4999999, 0.5000001, 0.0]),  # nearly equal
    ],
)
def test_one_step_is_exact_for_degenerate_laws(
    target: list[float], source: list[float], how: How
) -> None:
    for shape in ("chain", "bushy"):
        p, q = PathLaws(laws=target), PathLaws(laws=source)
        assert step_error(Rejection(), SHAPES[shape], how, target=p, source=q) < EXACT


def placed_then_drawn(build: TreeBuilder, source: PathLaws) -> Draft:
    build.place(build.root, torch.tensor([[1]]))
    build.draw(build.root, source.proposal(build.root), 2, "wor")
    return build.build()


def drawn_then_placed(build: TreeBuilder, source: PathLaws) -> Draft:
    children = build.draw(build.root, source.proposal(build.root), 2, "iid")
    build.place(build.root, torch.tensor([[0, 1]]))
    build.draw(children, source.proposal(children), 1, "iid")
    return build.build()


def two_sources(build: TreeBuilder, source: PathLaws) -> Draft:
    build.draw(build.root, source.proposal(build.root), 1, "iid")
    build.draw(build.root, PathLaws(7).proposal(build.root), 2, "wor")
    return build.build()


@pytest.mark.parametrize("grow", [placed_then_drawn, drawn_then_placed, two_sources])
def test_several_calls_at_one_node_are_exact(grow: Grow) -> None:
    assert step_error(Rejection(), grow, "iid") < EXACT


def smaller_vocabulary(build: TreeBuilder, source: PathLaws) -> Draft:
    full = source.proposal(build.root)
    assert full.logits is not None
    proposal = Proposal(logits=full.logits[:, :2], ids=torch.tensor([2, 0]))
    build.extend(build.root, proposal, 2)
    return build.build()


@pytest.mark.parametrize("how", DRAWN)
def test_a_source_with_a_smaller_vocabulary_is_exact(how: How) -> None:
    assert step_error(Rejection(), smaller_vocabulary, how) < EXACT


def test_how_many_siblings_may_depend_on_earlier_ones() -> None:
    def grow(build: TreeBuilder, source: PathLaws) -> Draft:
        first = build.draw(build.root, source.proposal(build.root), 1, "iid")
        if int(first.tokens) == 0:
            build.draw(build.root, source.proposal(build.root), 1, "iid")
        return build.build()

    assert step_error(Rejection(), grow, "iid") < EXACT


def test_a_chain_accepts_one_minus_the_total_variation() -> None:
    p, q = PathLaws(0), PathLaws(1)
    law = step_law(Rejection(), chain, p, q, "iid")
    accepted = sum(probability for tokens, probability in law.items() if len(tokens) > 1)
    assert accepted == pytest.approx(float(torch.minimum(p.at(()), q.at(())).sum()), abs=EXACT)


@pytest.mark.parametrize("how", DRAWN)
@pytest.mark.parametrize("shape", ["chain", "bushy"])
def test_a_perfect_draft_is_accepted_down_to_a_leaf(shape: str, how: How) -> None:
    law = step_law(Rejection(), SHAPES[shape], PathLaws(0), PathLaws(0), how)
    short = sum(probability for tokens, probability in law.items() if len(tokens) < 3)
    # Of equal laws the first draw is always kept; only the bushy tree's first child goes deeper.
    assert short < EXACT


def test_duplicates_keep_their_draws() -> None:
    class Always(Streams):
        def categorical(
            self, stream: Stream, probs: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
        ) -> Tensor:
            return torch.ones(probs.shape[0], dtype=torch.long)

    draft = siblings(builder(Always(seed=0), "iid"), PathLaws(1))
    assert draft.draws is not None
    (call,) = draft.draws
    assert call.tokens.tolist() == [[1, 1]]
    assert call.nodes.tolist() == [[1, 1]]  # both records met in the first node
    assert draft.alive.tolist() == [True, True, False]


def test_later_draws_without_replacement_are_tested_with_the_conditional_law() -> None:
    asked: list[Tensor] = []

    class Spy(Rejection):
        def proposal_probs(self, trial, call, law, token):  # type: ignore[no-untyped-def]
            asked.append(super().proposal_probs(trial, call, law, token)[0])
            return asked[-1][None]

    source = PathLaws(1)
    draft = siblings(builder(Streams(seed=0), "wor"), source)
    Spy().decide(draft, laws_of(draft, PathLaws(0)), Streams(seed=0))
    first, second = asked[:2]
    torch.testing.assert_close(first, source.at(()))
    assert draft.draws is not None
    rest = source.at(()).index_fill(0, draft.draws[0].tokens[0, :1], 0.0)
    torch.testing.assert_close(second, rest / rest.sum())


class Lowest(Streams):
    """Every uniform is zero, every coin as lucky as can be."""

    def uniform(self, stream: Stream, *counters: int | Tensor) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)


class Unlucky(Streams):
    """No coin lands."""

    def coin(
        self, probability: Tensor, counters: tuple[int | Tensor, ...], where: Tensor
    ) -> Tensor:
        return torch.zeros_like(where)


def test_the_luckiest_coin_does_not_accept_a_token_of_probability_zero() -> None:
    p, q = PathLaws(laws=[0.0, 0.4, 0.6]), PathLaws(laws=[1.0, 0.0, 0.0])
    draft = chain(builder(Streams(seed=0), "iid"), q)
    assert draft.tokens[1] == 0
    verdict = Rejection().decide(draft, laws_of(draft, p), Lowest(seed=0))
    assert emitted(verdict) in [(1,), (2,)]


def test_a_zero_residual_falls_back_to_the_target() -> None:
    p = PathLaws(laws=[0.0, 0.4, 0.6])
    seen = set()
    for seed in range(20):
        draft = siblings(builder(Streams(seed=seed), "iid"), p)
        verdict = Rejection().decide(draft, laws_of(draft, p), Unlucky(seed=seed))
        seen.add(emitted(verdict))
    assert seen == {(1,), (2,)}


# Known ways to bias it: the error in the law of one token must be of the order it is known for.


@pytest.mark.parametrize("shape", ["chain", "second_branch"])
def test_control_no_residual(shape: str) -> None:
    assert first_token_error(NoResidual(), SHAPES[shape], "iid") > 0.1


class Unnormalised(Rejection):
    """Keeps q of later draws as it was before the earlier ones."""

    def proposal_probs(self, trial, call, law, token):  # type: ignore[no-untyped-def]
        first = call.law[(call.parents == 0).int().argmax(0, keepdim=True)].double()
        return torch.where(law > 0, first, 0.0)


def test_control_draws_without_replacement_not_renormalised() -> None:
    assert first_token_error(Unnormalised(), siblings, "wor") > 0.08


def best_as_if_drawn(build: TreeBuilder, source: PathLaws) -> Draft:
    draft = siblings(build, source)
    law = source.at(())[None]
    tokens = draft.tokens[None, 1:3]
    call = DrawCall(
        depth=0,
        how="wor",
        parents=torch.tensor([0]),
        nodes=torch.tensor([[1, 2]]),
        tokens=tokens,
        indices=tokens,
        law=law,
    )
    return replace(draft, draws=(call,))


def test_control_softmax_as_the_law_of_a_top_k_pick() -> None:
    assert first_token_error(Rejection(), best_as_if_drawn, "place") > 0.08


def drop_duplicates(call: DrawCall) -> DrawCall:
    first = (call.tokens[:, :, None] == call.tokens[:, None, :]).int().argmax(-1)
    repeated = first != torch.arange(call.tokens.shape[1])
    return replace(call, tokens=torch.where(repeated, -1, call.tokens))


def test_control_duplicates_dropped() -> None:
    dropping = with_records(siblings, drop_duplicates)
    assert first_token_error(Rejection(), dropping, "iid") > 0.015


def likeliest_first(call: DrawCall) -> DrawCall:
    assert call.law is not None
    assert call.indices is not None
    order = call.law.gather(1, call.indices).argsort(dim=1, descending=True, stable=True)
    return replace(
        call,
        tokens=call.tokens.gather(1, order),
        nodes=call.nodes.gather(1, order),
        indices=call.indices.gather(1, order),
    )


@pytest.mark.parametrize("how", DRAWN)
def test_control_siblings_sorted_after_the_draw(how: How) -> None:
    resorting = with_records(siblings, likeliest_first)
    assert first_token_error(Rejection(), resorting, how) > 0.05


@pytest.mark.parametrize("how", DRAWN)
def test_control_drawn_nodes_pruned_by_their_own_probability(how: How) -> None:
    assert first_token_error(Rejection(), keep_likely, how) > 0.05


def keep_if_it_goes_on_well(build: TreeBuilder, source: PathLaws) -> Draft:
    first = build.extend(build.root, source.proposal(build.root), 1)
    second = build.extend(first, source.proposal(first), 1)
    if source.at(first.paths[0].tolist())[second.tokens] < 0.5:
        build.prune(build.root.nodes[:0])
    return build.build()


def test_control_first_token_kept_only_if_its_continuation_looks_good() -> None:
    assert first_token_error(Rejection(), keep_if_it_goes_on_well, "iid") > 0.015


def test_pruning_placed_nodes_is_harmless() -> None:
    assert step_error(Rejection(), keep_likely, "place") < EXACT


@pytest.mark.parametrize("how", ["place", *DRAWN])
def test_temperature_zero_is_the_greedy_limit(how: How) -> None:
    sampling, target = plain_sampling(0.0), PathLaws(0)
    greedy: tuple[int, ...] = ()
    for _ in range(3):
        greedy = (*greedy, int(target.at(greedy).argmax()))
    for grow in (chain, second_branch, bushy):
        for seed in range(5):
            draft = grow(builder(Streams(seed=seed), how, sampling), PathLaws(seed))
            laws = laws_of(draft, target, sampling)
            tokens = emitted(Rejection().decide(draft, laws, Streams(seed=seed)))
            assert tokens == greedy[: len(tokens)]


@pytest.mark.parametrize("how", DRAWN)
def test_words_are_the_ratio_and_the_coin_of_each_test(how: How) -> None:
    refused = 0
    for seed in range(30):
        target, source, rng = PathLaws(seed), PathLaws(seed + 100), Streams(seed=seed)
        draft = SHAPES["siblings"](builder(rng, how), source)
        laws = laws_of(draft, target)
        verdict = Rejection().decide(draft, laws, rng)
        explanation = Rejection().explain(draft, laws, rng, verdict)
        words = explanation.words(explanation.values.tolist(), str)
        token = int(draft.tokens[1])
        ratio = float(target.at(())[token] / source.at(())[token])
        coin = float(rng.uniform("accept", 1, 0))
        accepted = coin < ratio
        assert accepted == (emitted(verdict)[0] == token and int(verdict.path[0, 0]) == 1) or (
            how == "iid"
        )
        if not accepted and 1 in words:
            refused += 1
            assert words[1].startswith(f"ratio {ratio:.3g} < coin {coin:.3g}")
    assert refused
