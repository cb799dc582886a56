"""drafter=router: which source drafts, several under one node, and state that lags behind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from specframe import load
from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.drafter.base import Drafter, Traits
from specframe.drafter.lm import LM
from specframe.drafter.ngram import Ngram
from specframe.drafter.router import Router
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.records import StepRecord
from specframe.session.engine import Engine
from specframe.target.toy import Toy
from specframe.task.certify.broken import Careless, NoResidual
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.testing.host_reads import HostReads
from specframe.tree.base import dealt
from specframe.tree.chain import ChainTree
from specframe.tree.static import StaticTree
from specframe.types import Frontier, How, Needs, Proposal
from tests.methods import Lookahead, Recycling
from tests.small_models import (
    LONG_PROMPT,
    PROMPT,
    VOCAB,
    Composition,
    Scripted,
    assert_fresh,
    decode,
    draft,
    drafter_of,
    lm_of,
    oracle,
    sampling_config,
    small_table,
    target,
    tree_of,
)
from tests.test_syncs import read_in
from tests.turns import in_turn

REPEATS = (5, 17, 42, 8, 5, 17, 42, 8, 5, 17, 42)


def router(*sources: Drafter, mode: Any = "pick", min_match: int = 2) -> Router:
    """A router over these."""
    return Router(sources=sources, mode=mode, min_match=min_match)


def source_names(record: StepRecord) -> set[str]:
    """Who made the children of a step: placed candidates or a model's logits."""
    return {"lm" if call.law is not None else "ngram" for call in record.draft.draws or ()}


class Measured(Scripted):
    """Says how long its match is."""

    match_length: int | None = 0  # type: ignore[assignment]


class Rarely(Scripted):
    """Finds a long match twice of three times."""

    asked = -1

    @property
    def match_length(self) -> int:
        self.asked += 1
        return 9 * (self.asked % 3 > 0)


# One source


PAIRS = itertools.product(("ngram", "noisy", "perfect"), ("chain", "static", "dynamic", "native"))


@pytest.mark.parametrize(
    ("kind", "tree", "mode"),
    in_turn((one for one in PAIRS if one[1] != "native" or one[0] == "ngram"), ("pick", "merge")),
)
def test_with_one_source_it_is_that_source(kind: str, tree: str, mode: str) -> None:
    for temperature, how in ((0.0, "place"), (1.0, "wor")):
        made: list[Any] = []
        for wrapped in (False, True):
            one = drafter_of(kind, "llama")
            composed = Composition(
                target=target("llama"),
                drafter=router(one, mode=mode) if wrapped else one,
                tree=tree_of(tree, "place" if tree == "native" else how),  # type: ignore[arg-type]
                sampling=sampling_config(temperature),
                how="place" if tree == "native" else how,  # type: ignore[arg-type]
            )
            outcome = decode(composed, LONG_PROMPT, 20)
            made.append([(one.tokens, one.draft.tokens.tolist()) for one in outcome.records])
        assert made[0] == made[1]


def test_needs_of_all_sources_are_joined() -> None:
    one, two = drafter_of("ngram", "llama"), drafter_of("noisy", "llama")
    one.traits = Traits(needs=Needs(taps=("embed", "resid:1"), aux_rows=2))
    needs = Needs(taps=("resid:1", "final_postnorm"), own_cache=True, tokenizer=True)
    two.traits = Traits(needs=needs, max_positions=50, host_reads=3)
    joined = router(one, two)
    assert joined.traits.needs == Needs(
        taps=("embed", "resid:1", "final_postnorm"), aux_rows=2, own_cache=True, tokenizer=True
    )
    # The other one drafts without an end.
    assert (joined.traits.max_positions, joined.traits.host_reads) == (None, 3)
    one.traits = two.traits = Traits(needs=Needs(partial_layers=True))
    with pytest.raises(IncompatibleComponents, match="use only one"):
        router(one, two)


# Which one is picked


def test_a_long_match_goes_first_and_a_model_else() -> None:
    lookup, model = Measured([]), Scripted([])
    made = router(model, lookup, min_match=3)
    for length, first in ((0, model), (2, model), (3, lookup), (9, lookup)):
        lookup.match_length = length
        assert made._ranked()[0] is first
    other = Measured([])
    both = router(lookup, other, min_match=3)
    for lengths, expected in (((4, 4), 0), ((4, 5), 1), ((1, 2), 1), ((2, 1), 0)):
        lookup.match_length, other.match_length = lengths
        assert both._ranked()[0] is (lookup, other)[expected]


def test_ngram_measures_its_match() -> None:
    lookup = Ngram(n_max=3, n_min=2, length=4, max_matches=2)
    composed = Composition(target=target("llama"), drafter=lookup)
    loop = composed.decoding(8)
    for prompt, length in (((1, 2, 3, 9, 1, 2, 3), 3), ((7, 2, 3, 9, 1, 2, 3), 2), ((1, 2), 0)):
        loop.begin(prompt)
        loop.context.truncate(len(prompt))
        lookup.truncate(len(prompt))
        assert lookup.match_length == length


def test_a_pick_is_seen_in_the_draft() -> None:
    model = drafter_of("noisy", "llama")
    fed: list[int] = []
    inner = model.expand
    model.expand = lambda frontier: fed.append(frontier.depth) or inner(frontier)  # type: ignore
    lookup = drafter_of("ngram", "llama")
    composed = Composition(target=target("llama"), drafter=router(lookup, model, min_match=3))
    loop = composed.decoding(30)
    loop.begin(REPEATS)
    used = set()
    while loop.finish_reason is None:
        found = (lookup.match_length or 0) >= 3
        fed.clear()
        loop.step()
        assert bool(fed) is not found
        used.add(found)
    assert used == {True, False}, "both must have had their turn"
    assert loop.context.tokens[len(REPEATS) :] == oracle("llama", REPEATS, 30)


def test_the_next_one_drafts_where_the_first_has_nothing() -> None:
    empty = Scripted([])
    model = drafter_of("perfect", "llama")
    outcome = decode(Composition(target=target("llama"), drafter=router(empty, model)), PROMPT, 16)
    assert [record.num_accepted for record in outcome.records] == [4] * 3


# Stale state


def alternating(kind: type[Router]) -> tuple[list[int], list[int]]:
    """Accepted tokens of the steps that a perfect model drafted, while another has every second."""
    model = drafter_of("perfect", "llama")
    assert isinstance(model, LM)
    text = [*PROMPT, *oracle("llama", PROMPT, 40)]
    other = Rarely(text)
    made = kind(sources=[other, model], mode="pick", min_match=2)
    loop = Composition(target=target("llama"), drafter=made, tree=tree_of("static")).decoding(40)
    loop.begin(PROMPT)
    accepted, by_model = [], []
    while loop.finish_reason is None:
        record = loop.step()
        accepted.append(record.num_accepted)
        if made._drafting == [model]:
            by_model.append(record.num_accepted)
            assert_fresh(model._cache, draft("llama", "perfect").model, loop.context.tokens)
    assert loop.context.tokens == text
    return accepted, by_model


def test_a_source_that_lags_behind_is_caught_up() -> None:
    accepted, by_model = alternating(Router)
    assert len(by_model) >= 2
    # The static tree is 2, 3 or 4 deep along the first ranks.
    assert min(by_model[:-1]) >= 2
    assert len(accepted) > len(by_model)


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("mode", ["pick", "merge"])
def test_going_back_reaches_every_source(mode: str, tree: str) -> None:
    model = drafter_of("perfect", "llama")
    assert isinstance(model, LM)
    made = router(drafter_of("ngram", "llama"), model, mode=mode, min_match=9)
    loop = Composition(target=target("llama"), drafter=made, tree=tree_of(tree)).decoding(30)
    loop.begin(PROMPT)
    for _ in range(3):
        loop.step()
    kept = loop.context.tokens[: len(PROMPT) + 2]
    loop.truncate(len(kept), tail=[9, 11])
    while loop.finish_reason is None:
        loop.step()
        assert_fresh(model._cache, draft("llama", "perfect").model, loop.context.tokens)
    prompt = (*kept, 9, 11)
    assert loop.context.tokens == [*prompt, *oracle("llama", prompt, 26)]


class Confused(Router):
    """Tells its parts of another path than the one that was taken."""

    def observe(self, record: StepRecord) -> None:
        others = record.draft.num_rows - 1
        path = [row % others + 1 for row in record.path] if others else []
        super().observe(replace(record, path=path))


def test_control_keys_of_another_path_are_noticed() -> None:
    with pytest.raises(AssertionError):
        alternating(Confused)


# Several under one node


class Whole(Drafter):
    """A law of its own over a vocabulary of three."""

    traits = Traits(laws="logits")

    def __init__(self, *logits: float) -> None:
        self.logits = torch.tensor([logits], dtype=torch.float64)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        return [Proposal(logits=self.logits.expand(len(frontier), -1), source="whole")]


def engine(rule: AcceptRule, tree: str, how: How, mode: str, *, first: str = "ngram") -> Engine:
    """Look-up (or a law), a draft model and a law, on a vocabulary of three."""
    made = small_table()
    lookup: Drafter = Ngram(n_max=2, n_min=1, length=2, max_matches=2)
    parts = [
        lookup if first == "ngram" else Whole(0.2, -1.0, 0.5),
        lm_of(small_table(0.5), made),
        Whole(1.0, 0.0, -0.5),
    ]
    paths = [[0], [1], [2], [1, 0]]
    return Composition(
        target=made,
        drafter=router(*parts, mode=mode),
        tree=ChainTree(depth=2, max_nodes=8, proposal=how)
        if tree == "chain"
        else StaticTree(depth=2, max_nodes=8, proposal=how, paths=paths),
        accept=rule,
        how=how,
        sampling=sampling_config(0.9),
    ).engine()


def error_of(made: Engine, length: int = 3) -> float:
    prompt = (0, 1, 2, 0)
    law, _ = sequence_law(made, prompt, length=length, max_branches=30_000)
    assert isinstance(made.components.target, Toy)
    exact = exact_law(made.components.target, made.sampling(len(prompt)), prompt, length=length)
    return max_error(law, exact)


LAWS = itertools.product(
    (Match(), Rejection()), ("pick", "merge"), ("place", "iid", "wor"), ("ngram", "law")
)


@pytest.mark.parametrize(
    ("rule", "mode", "how", "first", "tree"), in_turn(LAWS, ("chain", "static"), every=6)
)
def test_the_law_is_exact(rule: AcceptRule, tree: str, how: How, mode: str, first: str) -> None:
    assert error_of(engine(rule, tree, how, mode, first=first)) < 1e-12


@pytest.mark.parametrize("rule", [NoResidual(), Careless()], ids=["no residual", "careless"])
def test_control_a_broken_rule_is_noticed(rule: AcceptRule) -> None:
    assert error_of(engine(rule, "static", "wor", "merge")) > 1e-3


def test_control_a_law_of_another_source_is_noticed() -> None:
    """Children drawn by the one and recorded with the law of the other."""

    class Mixed(Router):
        def expand(self, frontier: Frontier) -> Sequence[Proposal]:
            first, second = list(super().expand(frontier))[:2]
            assert first.logits is not None
            assert second.logits is not None
            drawn = second.logits.softmax(-1).argmax(-1, keepdim=True)
            return [Proposal(law=first.logits.softmax(-1), drawn=drawn)]

    made = engine(Rejection(), "chain", "iid", "merge", first="law")
    parts = made.components.drafter
    assert isinstance(parts, Router)
    composed = Composition(
        target=made.components.target,
        drafter=Mixed(sources=parts.drafters, mode="merge", min_match=2),
        tree=made.components.tree,
        accept=Rejection(),
        how="iid",
        sampling=sampling_config(0.9),
    )
    assert error_of(composed.engine()) > 1e-3


@pytest.mark.parametrize("tree", ["static", "dynamic"])
def test_children_of_several_sources_share_a_node(tree: str) -> None:
    how: How = "wor" if tree == "static" else "place"
    lookup = Scripted([*REPEATS, *range(30)])
    composed = Composition(
        target=target("llama"),
        drafter=router(lookup, drafter_of("noisy", "llama"), mode="merge"),
        tree=tree_of(tree, how),
        accept=Rejection(),
        how=how,
        sampling=sampling_config(0.8),
    )
    loop = composed.decoding(12)
    loop.begin(REPEATS)
    record = loop.step()
    if how == "wor":
        assert source_names(record) == {"lm", "ngram"}
        roots = [call for call in record.draft.draws or () if call.depth == 0]
        assert len(roots) == 2
        assert [call.law is None for call in roots] == [True, False]
        assert [call.nodes.tolist() for call in roots] == [[[1]], [[2, 3]]], (
            "ranks are dealt in turn"
        )
    assert int((record.draft.parents == 0).sum()) >= 2


@pytest.mark.parametrize("tree", ["static", "dynamic"])
def test_merged_sources_accept_what_either_knows(tree: str) -> None:
    """One is right at even places, the other at odd ones; together they are always right."""
    text = [*PROMPT, *oracle("llama", PROMPT, 30)]

    class Half(Scripted):
        def __init__(self, parity: int) -> None:
            super().__init__(
                [t if i % 2 == parity else (t + 1) % VOCAB for i, t in enumerate(text)]
            )

    alone = decode(Composition(target=target("llama"), drafter=Half(0)), PROMPT, 30)
    both = Composition(
        target=target("llama"),
        drafter=router(Half(0), Half(1), mode="merge"),
        tree=tree_of(tree),
    )
    outcome = decode(both, PROMPT, 30)
    assert outcome.tokens == oracle("llama", PROMPT, 30)
    assert len(outcome.records) < len(alone.records)


# Auxiliary rows and what is read back


@pytest.mark.parametrize("tree", ["chain", "static", "native"])
def test_auxiliary_rows_of_several_sources(tree: str) -> None:
    pair = [Lookahead(window=5, vocab_size=VOCAB), Lookahead(window=3, vocab_size=VOCAB)]
    made = router(*pair, Recycling(vocab_size=VOCAB, width=2), mode="merge")
    composed = Composition(target=target("llama"), drafter=made, tree=tree_of(tree))
    outcome = decode(composed, PROMPT, 16)
    assert outcome.tokens == oracle("llama", PROMPT, 16)
    for one, width in zip(pair, (5, 3), strict=True):
        assert sum(map(len, one.pool.values())) == width * len(outcome.records)
    for one, width in zip(pair, (5, 3), strict=True):
        alone = Lookahead(window=width, vocab_size=VOCAB)
        plain = Composition(target=target("llama"), drafter=alone, tree=tree_of(tree))
        first = plain.decoding(16)
        first.begin(PROMPT)
        first.step()
        begun = composed.decoding(16)
        begun.begin(PROMPT)
        begun.step()
        assert one.guess == alone.guess, "rows of another part must not be seen"


def test_a_forced_step_has_nothing_read_back() -> None:
    pair = [Lookahead(window=4, vocab_size=VOCAB), Lookahead(window=2, vocab_size=VOCAB)]
    loop = Composition(target=target("llama"), drafter=router(*pair)).decoding(20)
    loop.begin(PROMPT)
    loop.step()
    loop.truncate(len(PROMPT) + 1, tail=[3, 4])
    while loop.finish_reason is None:
        loop.step()
    prompt = loop.context.tokens[: len(PROMPT) + 3]
    assert loop.context.tokens == [*prompt, *oracle("llama", tuple(prompt), 17)]


@pytest.mark.parametrize("mode", ["pick", "merge"])
@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
def test_it_reads_nothing(tree: str, mode: str) -> None:
    words = ["target=toy", "drafter=router", f"drafter.mode={mode}", f"tree={tree}"]
    for seen in read_in(load(words).decoding(), HostReads(), (1, 2, 3, 1, 2), steps=8):
        assert len(seen) == 1, seen


# Words


def test_each_source_has_its_own_keys() -> None:
    words = ["target=toy", "drafter=router", "drafter.sources=[lm,ngram]"]
    made = load([*words, "drafter.ngram.n_max=7", "drafter.lm.model=toy"]).components.drafter
    assert isinstance(made, Router)
    model, lookup = made.drafters
    assert isinstance(lookup, Ngram)
    assert isinstance(model, LM)
    assert (lookup.n_max, lookup.n_min) == (7, 1)
    assert model.model is load(["target=toy", "drafter=none"]).components.target


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["drafter.ngram.n_maxx=3"], r"drafter\.ngram\.n_maxx: ngram has no field .* 'n_max'\?"),
        (["drafter.ngram.n_max=none"], r"drafter\.ngram\.n_max=none: expected integer"),
        (["drafter.ngram=3"], r"drafter\.ngram=3: write its keys|has no field 'ngram'"),
        (["drafter.eagle.path=x"], r"drafter=router does not use eagle.*drafter\.sources=\[\.\.\."),
        (["drafter.sources=[lm,ngam]"], r"drafter\.sources=ngam: no such option.*'ngram'\?"),
        (["drafter.sources=[lm,lm]"], r"lm is listed twice; keep one"),
        (["drafter.sources=[]"], r"list at least one word"),
        (["drafter.sources=lm"], r"write a list of words, \[lm\]"),
        (["drafter.mode=mix"], r"drafter\.mode=mix: expected one of pick, merge"),
        (["drafter.ngram.n_min=5"], r"drafter\.ngram: drafter\.n_min=5 is above|n_min=5 is above"),
        (["drafter.min_match=0"], r"drafter\.min_match=0 is out of range"),
    ],
)
def test_mistakes_name_the_source(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(["target=toy", "drafter=router", *words])


def test_rejection_wants_one_source_that_gives_a_law() -> None:
    words = ["target=toy", "drafter=router", "accept=rejection", "sampling.temperature=1"]
    assert load([*words, "drafter.sources=[ngram,lm]", "tree=chain"]).components.how == "wor"
    with pytest.raises(IncompatibleComponents, match=r"none of drafter\.sources does.* use accept"):
        plan(compose([*words, "drafter.sources=[ngram]"]))
    with pytest.raises(IncompatibleComponents, match=r"use tree=chain"):
        plan(compose([*words, "drafter.sources=[lm]", "tree=native"]))
    with pytest.raises(IncompatibleComponents, match=r"tree=dynamic re-ranks the tokens"):
        plan(compose([*words, "drafter.sources=[lm,cascade]", "tree=dynamic"]))


def test_the_same_sources_are_the_same_class() -> None:
    words = ["target=toy", "drafter=router"]
    one, two = (plan(compose(words)).bound["drafter"].cls for _ in range(2))
    other = plan(compose([*words, "drafter.sources=[ngram]"])).bound["drafter"].cls
    assert one is two is not other
    assert issubclass(other, Router)
    assert (one.traits.laws, other.traits.laws) == ("logits", "none")


def test_ranks_are_dealt_in_turn_as_far_as_each_lasts() -> None:
    wide, narrow = (Proposal(candidates=torch.zeros(1, k)) for k in (5, 2))
    empty = Proposal()
    ranks = [ranks for _, ranks in dealt([wide, empty, narrow], 6)]
    assert ranks == [[0, 2, 4, 5], [1, 3]]
    assert dealt([wide], 3) == [(wide, [0, 1, 2])]
    assert dealt([empty], 3) == dealt([], 3) == []
