"""drafter=cascade: an inner engine's text as the draft, its law, and going back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specframe import load
from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.drafter.cascade import Cascade
from specframe.drafter.ngram import Ngram
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.loop import Decoding
from specframe.records import StepRecord
from specframe.target.toy import Toy
from specframe.task.certify.law_checks import sampled_law
from specframe.testing.host_reads import HostReads
from specframe.tree.chain import ChainTree
from specframe.types import How
from tests.drafter.edges import nested_law
from tests.small_models import (
    PROMPT,
    Composition,
    assert_fresh,
    decode,
    draft,
    drafter_of,
    lm_of,
    oracle,
    raw,
    sampling_config,
    stop_config,
    target,
    tree_of,
)
from tests.test_syncs import read_in

COUNT = 24


def cascade(
    kind: str = "noisy",
    *,
    length: int = 4,
    temperature: float = 0.0,
    room: int = 300,
    made: type[Cascade] = Cascade,
) -> tuple[Cascade, Composition]:
    """A cascade for the tiny Llama over a draft of this kind, sped up by n-grams."""
    model = draft("llama", kind)
    inner = Composition(
        target=model,
        drafter=drafter_of("ngram", "llama"),
        sampling=sampling_config(temperature),
        stop=stop_config(eos=[]),
        seed=1,
    )
    loop = inner.decoding(room)
    return made(inner=loop, model=model, target=target("llama"), length=length), inner


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("kind", ["perfect", "noisy", "bad"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_the_targets(tree: str, kind: str, temperature: float) -> None:
    drafter, inner = cascade(kind, temperature=temperature)
    plain = Composition(target=target("llama"), sampling=sampling_config(temperature))
    expected = decode(plain, PROMPT, COUNT).tokens
    if not temperature:
        assert expected == oracle("llama", PROMPT, COUNT)
    composed = Composition(
        target=target("llama"),
        drafter=drafter,
        tree=tree_of(tree),
        sampling=sampling_config(temperature),
    )
    outcome = decode(composed, PROMPT, COUNT)
    assert outcome.tokens == expected
    assert_fresh(inner.cache, inner.target.model, drafter.inner.context.tokens)  # type: ignore


@pytest.mark.parametrize("length", [1, 3, 4, 7])
def test_a_perfect_inner_target_is_accepted_in_full(length: int) -> None:
    """Whatever the inner steps are, `length` tokens are handed over, corrections among them."""
    drafter, _ = cascade("perfect", length=length)
    composed = Composition(target=target("llama"), drafter=drafter)
    composed.tree = ChainTree(depth=7, max_nodes=8, proposal="place")
    outcome = decode(composed, PROMPT, COUNT)
    full = [record.num_accepted for record in outcome.records]
    assert set(full[:-1]) == {length}


def test_perfect_under_rejection_too() -> None:
    model = draft("llama", "perfect")
    small = lm_of(draft("llama", "noisy"), model)
    hot = sampling_config(0.8, top_p=0.9)
    inner = Composition(
        target=model,
        drafter=small,
        tree=tree_of("static", "wor"),
        accept=Rejection(),
        how="wor",
        sampling=hot,
        seed=1,
    ).decoding(300)
    drafter = Cascade(inner=inner, model=model, target=target("llama"), length=4)
    composed = Composition(
        target=target("llama"), drafter=drafter, accept=Rejection(), sampling=hot, seed=3
    )
    outcome = decode(composed, PROMPT, 40)
    assert all(one.num_accepted >= 4 for one in outcome.records[:-1])


class Fresh(Cascade):
    """Begins its inner text anew in every step."""

    def _run_ahead(self) -> None:
        self._held = []
        super()._run_ahead()


class Stale(Cascade):
    """Never goes back: after a token that differed it goes on from its own text."""

    def _compare(self) -> None:
        super()._compare()
        self._agreed = min(len(self._held), len(self._context))


@pytest.mark.parametrize("kind", ["noisy", "bad"])
def test_going_on_drafts_what_a_fresh_start_would(kind: str) -> None:
    """Stale inner keys would leave the text right and change the drafts."""
    drafts = []
    for made in (Cascade, Fresh):
        drafter, _ = cascade(kind, made=made)
        outcome = decode(Composition(target=target("llama"), drafter=drafter), PROMPT, 40)
        drafts.append([record.draft.tokens.tolist() for record in outcome.records])
    assert drafts[0] == drafts[1]
    drafter, _ = cascade(kind, made=Stale)
    loop = Composition(target=target("llama"), drafter=drafter).decoding(40)
    loop.begin(PROMPT)
    found = []
    while loop.finish_reason is None:
        found.append(loop.step().draft.tokens.tolist())
    assert found != drafts[0], "the control must be seen"


@pytest.mark.parametrize("tail", [(), (3,), (9, 11, 13, 2)])
def test_truncate(tail: tuple[int, ...]) -> None:
    drafter, inner = cascade("perfect")
    loop = Composition(target=target("llama"), drafter=drafter).decoding(COUNT)
    loop.begin(PROMPT)
    for _ in range(2):
        loop.step()
    kept = loop.context.tokens[: len(PROMPT) + 2]
    loop.truncate(len(kept), tail)
    while loop.finish_reason is None:
        record = loop.step()
        assert record.num_accepted == 4 or loop.finish_reason is not None
        assert_fresh(inner.cache, raw("llama"), drafter.inner.context.tokens)  # type: ignore
    prompt = (*kept, *tail)
    assert loop.context.tokens == [
        *prompt,
        *oracle("llama", prompt, len(PROMPT) + COUNT - len(prompt)),
    ]


@pytest.mark.parametrize("room", [1, 2, 5, 9])
def test_a_run_may_outgrow_the_inner_one(room: int) -> None:
    drafter, _ = cascade("perfect", room=room)
    outcome = decode(Composition(target=target("llama"), drafter=drafter), PROMPT, 40)
    assert outcome.tokens == oracle("llama", PROMPT, 40)
    assert room < 5 or outcome.num_accepted > 10


# The law


def law_of(
    *,
    length: int,
    rule: AcceptRule,
    how: How,
    made: type[Cascade] = Cascade,
    penalty: float | None = None,
) -> float:
    """Error of the law over two tokens, the draws of both loops enumerated."""

    def drafter(inner: Decoding, model: Toy, large: Toy) -> Cascade:
        return made(inner=inner, model=model, target=large, length=2)

    return nested_law(drafter, length=length, rule=rule, how=how, penalty=penalty)


@pytest.mark.parametrize("penalty", [None, 1.4])
@pytest.mark.parametrize(("rule", "how"), [(Match(), "place"), (Rejection(), "iid")])
def test_the_law_under_rejection_is_exact(
    rule: AcceptRule, how: How, penalty: float | None
) -> None:
    assert law_of(length=3, rule=rule, how=how, penalty=penalty) < 1e-12


class Withholding(Cascade):
    """Hands over accepted tokens only: what the inner engine corrects is left out."""

    def _take(self, record: StepRecord) -> None:
        kept = record.num_accepted
        before = len(self._laws)
        super()._take(record)
        self._withheld = getattr(self, "_withheld", set())
        if kept < len(record.tokens):
            self._withheld.add(before + kept)

    def expand(self, frontier: Any) -> Any:
        if frontier.depth == 0:
            self._withheld = set()
        found = super().expand(frontier)
        return [] if frontier.depth in self._withheld else found


def test_control_withheld_corrections_bias_the_text() -> None:
    assert law_of(length=3, rule=Rejection(), how="iid", made=Withholding) > 1e-3


class Lying(Cascade):
    """Says that its tokens were drawn evenly."""

    def _take(self, record: StepRecord) -> None:
        super()._take(record)
        self._laws = [torch.full_like(law, 1 / law.shape[-1]) for law in self._laws]


def test_control_a_wrong_law_is_noticed() -> None:
    assert law_of(length=3, rule=Rejection(), how="iid", made=Lying) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("draws", [700])
def test_sampled_texts_follow_the_law(draws: int) -> None:
    """With the real streams: the inner noise must be independent of the outer one."""
    words = ["target=toy", "target.vocab_size=3", "drafter=cascade", "drafter.model=toy_draft"]
    more = ["accept=rejection", "sampling.temperature=1", "drafter.length=3", "stop.eos=[]"]
    more.append("tree=chain")
    with pytest.raises(IncompatibleComponents, match="another vocabulary"):
        load([*words, *more])
    words = ["target=toy", "drafter=cascade", "drafter.inner=[ngram,chain,match]", *more]
    found = sampled_law(load(words), (0, 1, 2, 0), length=3, draws=draws)
    assert found.numbers["p_value"] > 1e-4


# Reads


@pytest.mark.parametrize("length", [1, 3])
def test_an_inner_step_reads_once(length: int) -> None:
    engine = load(["target=toy", "drafter=cascade", f"drafter.length={length}"])
    declared = engine.host_reads()["drafter"]
    assert declared == length
    reads = HostReads()
    for seen in read_in(engine.decoding(), reads, (1, 2, 3))[1:]:
        assert 1 <= len(seen) <= 1 + declared, seen


# Words


def test_the_inner_engine_is_composed_by_words() -> None:
    words = ["target=toy", "drafter=cascade", "drafter.inner=[ngram,static,match]"]
    more = ["drafter.ngram.n_max=7", "drafter.static.depth=2", "sampling.temperature=0.7"]
    engine = load([*words, *more, "seed=5"])
    drafter = engine.components.drafter
    assert isinstance(drafter, Cascade)
    loop = drafter.inner
    assert isinstance(loop, Decoding)
    assert isinstance(loop.components.drafter, Ngram)
    assert loop.components.drafter.n_max == 7
    assert loop.components.tree.depth == 2
    assert loop.components.target is drafter.model is not engine.components.target
    loop.begin([1, 2, 3])
    assert loop.lane.sampling.temperature == 0.7
    assert loop.lane.rng.seed == 6, "noise of its own"


def test_the_model_may_be_the_target_itself() -> None:
    engine = load(["target=toy", "drafter=cascade", "drafter.model=toy", "max_new_tokens=40"])
    assert engine.components.target is engine.components.drafter.model  # type: ignore[attr-defined]
    loop = engine.decoding()
    loop.begin([1, 2, 3, 1])
    while loop.finish_reason is None:
        record = loop.step()
        assert record.num_accepted >= 5 or loop.finish_reason is not None


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["drafter.inner=[ngam]"], ConfigError, r"drafter\.inner=ngam: no such option"),
        (["drafter.inner=[ngram,typical]", "accept=rejection"], IncompatibleComponents, "is lossy"),
        (
            ["drafter.inner=[ngram,rejection]"],
            IncompatibleComponents,
            r"drafter\.inner: accept=rejection drafter=ngram: ngram gives no law",
        ),
        (["drafter.chain.dpeth=3"], ConfigError, r"drafter\.chain\.dpeth: chain has no field"),
        (["drafter.static.depth=3"], ConfigError, "does not use static"),
        (["drafter.length=0"], ConfigError, r"drafter\.length=0 is out of range"),
        (["target.draft=null"], ConfigError, r"drafter\.model: no draft is known"),
        (
            ["accept=rejection", "sampling.temperature=1", "tree=dynamic"],
            IncompatibleComponents,
            "re-ranks the tokens that drafter=cascade",
        ),
    ],
)
def test_mistakes(words: list[str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        load(["target=toy", "drafter=cascade", *words])


def test_a_lossy_inner_rule_is_fine_under_match() -> None:
    words = ["target=toy", "sampling.temperature=1", "max_new_tokens=30"]
    made = load([*words, "drafter=cascade", "drafter.inner=[ngram,typical]"])
    assert (
        made.generate([1, 2, 3]).tokens == load([*words, "drafter=none"]).generate([1, 2, 3]).tokens
    )
    assert (
        plan(compose([*words, "drafter=cascade", "drafter.inner=[ngram,typical]"]))
        .bound["drafter"]
        .cls.traits.laws
        == "none"
    )
