"""Where the loop ends: lengths, contexts, capacities, auxiliary rows and end tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from specframe.cache.static import StaticCache as StaticCache
from specframe.drafter.base import Drafter, Traits
from specframe.drafter.cascade import Cascade
from specframe.drafter.ouroboros import Ouroboros
from specframe.drafter.router import Router
from specframe.measure.meter import Meter
from specframe.records import StepRecord
from specframe.session.warmup import prepared
from specframe.target.hf import HF
from specframe.target.toy import Toy
from specframe.types import AuxRows, Budget, Draft, Needs
from tests.runtime.rehearsal import rehearsed
from tests.small_models import (
    CACHE_MAKERS,
    CPU,
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    Scripted,
    assert_fresh,
    decode,
    drafter_of,
    full_logits,
    lm_of,
    model,
    oracle,
    raw,
    sampling_config,
    stop_config,
    target,
    toy,
    tree_of,
)


class WithAux(Scripted):
    """A right draft and two auxiliary rows that see the whole tree."""

    traits = Traits(needs=Needs(aux_rows=2, taps=("final_postnorm",)))

    def aux(self, draft: Draft, budget: Budget) -> Draft:
        n, device = draft.num_rows, draft.tokens.device
        sees = torch.ones((2, n + 2), dtype=torch.bool, device=device)
        sees[:, n:] = torch.eye(2, dtype=torch.bool, device=device)
        sees[:, :n] &= draft.alive
        position = len(self.context) - 1 + draft.depth + 1
        rows = AuxRows(
            tokens=torch.tensor([3, 4], device=device),
            positions=torch.full((2,), position, device=device),
            sees=sees,
        )
        return replace(draft, aux=rows)


@pytest.mark.parametrize("count", range(1, 13))
def test_length_is_exact_with_long_drafts(count: int) -> None:
    expected = oracle("llama", PROMPT, 16)[:count]
    for tree in ("chain", "dynamic"):
        composed = Composition(
            target=target("llama"), drafter=drafter_of("perfect", "llama"), tree=tree_of(tree)
        )
        outcome = decode(composed, PROMPT, count)
        assert outcome.tokens == expected
        assert outcome.loop.finish_reason == "length"
        assert sum(len(record.tokens) for record in outcome.records) == count - 1


@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_end_of_the_context(cache: str) -> None:
    made = model("gpt2", max_position_embeddings=32)
    small = HF.of(made, runtime=RUNTIME)
    prompt = [int(one) for one in torch.arange(33) * 7 % VOCAB]
    for length, wanted in ((27, 5), (27, 50), (31, 50), (32, 50)):
        emitted = min(wanted, 33 - length)
        expected = list(prompt[:length])
        for _ in range(emitted):
            expected.append(int(full_logits(made, expected)[-1].argmax()))
        for tree in ("chain", "static", "dynamic"):
            composed = Composition(
                target=small,
                drafter=lm_of(small, small, cache),
                tree=tree_of(tree),
                cache=CACHE_MAKERS[cache](),
            )
            outcome = decode(composed, prompt[:length], wanted)
            assert outcome.tokens == expected[length:]
            assert outcome.loop.finish_reason == "length"
    composed = Composition(target=small, cache=CACHE_MAKERS[cache]())
    with pytest.raises(ValueError, match=r"prompt has 33 tokens, the target's context is 32"):
        decode(composed, prompt)
    assert composed.cache.extents[0] == 0


ROOM = 10  # tokens of a short draft's context


def short(kind: str, large: Toy, room: int = ROOM) -> Drafter:
    """A drafter whose context ends before the run's."""
    small = toy(blend=0.0 if kind == "perfect" else 0.2, max_positions=room)
    if kind == "cascade":
        inner = Composition(target=small).decoding(64)
        return Cascade(inner=inner, model=small, target=large, length=4)
    if kind == "ouroboros":
        numbers = {"draft_tokens": 4, "window": 4, "ngram": 3, "phrases": 2}
        return Ouroboros(
            model=small,
            target=large,
            new_cache=CACHE_MAKERS["dynamic"],
            layers=None,
            trust_vocabulary=False,
            keep_pool=False,
            **numbers,
        )
    return lm_of(small, large)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("kind", ["lm", "perfect", "cascade", "ouroboros"])
def test_drafting_ends_where_the_drafters_context_does(
    kind: str, tree: str, temperature: float, capsys: pytest.CaptureFixture[str]
) -> None:
    large = toy()
    sampling = sampling_config(temperature)
    plain = Composition(target=large, sampling=sampling)
    composed = Composition(
        target=large, drafter=short(kind, large), tree=tree_of(tree), sampling=sampling
    )
    engine = composed.engine(16)  # one run, which says it once
    for length in (2, 7, 9, 10, 11, 14):
        prompt = [place % 6 for place in range(length)]
        meter, steps = Meter(CPU), StepsSeen()
        meter.begin()
        answer = engine.generate(prompt, observers=[meter, steps])
        assert answer.tokens == decode(plain, prompt, 16).tokens
        assert answer.finish_reason == "length"
        assert all(drafted == 0 for before, drafted in steps.drafted if before > ROOM)
        assert all(depth <= ROOM - before + 1 for before, depth in steps.depths if depth)
        inside = [drafted for before, drafted in steps.drafted if before <= ROOM]
        assert all(inside), "it drafts up to its last place"
        assert meter.end().num_drafted == sum(inside)
    said = capsys.readouterr().err
    assert said == (
        f"specframe: the drafter's context is {ROOM} tokens; the text goes on without a draft\n"
    )


def test_a_rehearsal_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The one notice is for an answer, not for what a runtime tries before the first one."""
    large = toy()
    composed = Composition(
        target=large, drafter=short("lm", large, 4), tree=tree_of("dynamic"), runtime=rehearsed()
    )
    engine = prepared(composed.engine(8))
    assert capsys.readouterr().err == ""
    engine.generate((1, 2))
    assert "context is 4 tokens" in capsys.readouterr().err


class StepsSeen:
    """What was drafted at each step, by the tokens of the context before it."""

    def __init__(self) -> None:
        self.drafted: list[tuple[int, int]] = []
        self.depths: list[tuple[int, int]] = []

    def observe(self, record: StepRecord) -> None:
        live = record.draft.depths[record.draft.alive]
        self.drafted.append((record.length_before, int((live > 0).sum())))
        self.depths.append((record.length_before, int(live.max())))


def test_a_perfect_draft_is_accepted_up_to_its_last_place() -> None:
    large = toy()
    composed = Composition(target=large, drafter=short("perfect", large))
    records = decode(composed, (1, 2), 20).records
    assert [(one.length_before, one.num_accepted) for one in records] == [
        (3, 4),
        (8, 3),
        *((length, 0) for length in range(12, 22)),
    ]


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic", "native"])
@pytest.mark.parametrize("mode", ["pick", "merge"])
def test_a_router_is_bound_by_its_longest_member(
    mode: Literal["pick", "merge"], tree: str, capsys: pytest.CaptureFixture[str]
) -> None:
    large = toy()
    parts = [short("lm", large, 8), short("ouroboros", large, 12)]
    router = Router(sources=parts, mode=mode, min_match=1)
    assert router.traits.max_positions == 12
    composed = Composition(target=large, drafter=router, tree=tree_of(tree))
    steps = StepsSeen()
    answer = composed.engine(20).generate((1, 2), observers=[steps])
    assert answer.tokens == decode(Composition(target=large), (1, 2), 20).tokens
    assert all(bool(drafted) == (before <= 12) for before, drafted in steps.drafted)
    assert "context is 12 tokens" in capsys.readouterr().err
    free = Router(sources=[drafter_of("ngram", "toy"), parts[0]], mode=mode, min_match=1)
    assert free.traits.max_positions is None
    composed = Composition(target=large, drafter=free, tree=tree_of(tree))
    assert composed.engine(20).generate((1, 2)).tokens == answer.tokens
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", ["ngram", "noisy", "perfect"])
@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
def test_draft_shrinks_where_the_cache_ends(tree: str, kind: str) -> None:
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of(kind, "llama"),
        tree=tree_of(tree),
        cache=StaticCache(capacity=20, block=16),
    )
    outcome = decode(composed, PROMPT, 50)
    assert outcome.tokens == oracle("llama", PROMPT, 15)  # 20 held, the last one never fed
    assert outcome.loop.finish_reason == "length"
    with pytest.raises(ValueError, match=r"cache\.capacity=20 cannot hold 21 slots"):
        decode(composed, list(range(21)), 3)
    assert decode(composed, PROMPT, 5).tokens == oracle("llama", PROMPT, 5)


@pytest.mark.parametrize("capacity", [None, 20])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_auxiliary_rows_stay_outside(family: str, capacity: int | None) -> None:
    composed = Composition(
        target=target(family),
        drafter=WithAux([*PROMPT, *oracle(family, PROMPT, 40)], rank=1, width=2),
        tree=tree_of("static"),
        cache=StaticCache(capacity=capacity, block=4),
    )
    count = 15 if capacity else 24
    outcome = decode(composed, PROMPT, 24)
    assert outcome.tokens == oracle(family, PROMPT, count)
    assert_fresh(composed.cache, raw(family), outcome.loop.context.tokens)
    for record in outcome.records[:3]:
        assert record.out.aux_logits.shape == (2, VOCAB)
        taps = record.out.taps["final_postnorm"]
        assert taps.shape[0] == record.draft.num_rows + 2
        assert len(record.draft.tokens) + 2 <= 12


@pytest.mark.parametrize("kind", ["none", "noisy", "perfect"])
def test_end_token_inside_a_block(kind: str) -> None:
    text = oracle("llama", PROMPT, 16)
    for place in (0, 1, 3, 4, 5):
        end = text[place]
        kept = text[: text.index(end) + 1]
        composed = Composition(
            target=target("llama"),
            drafter=drafter_of(kind, "llama"),
            stop=stop_config(eos=[96 if text[0] != 96 else 95, end]),
        )
        outcome = decode(composed)
        assert outcome.tokens == kept
        assert outcome.loop.finish_reason == "eos"
        assert sum(len(one.tokens) for one in outcome.records) == len(kept) - 1
        if kind == "perfect" and place:
            assert outcome.num_accepted == len(kept) - 1 - (place == 5)
        assert_fresh(composed.cache, raw("llama"), outcome.loop.context.tokens)


def test_no_end_tokens_at_all() -> None:
    composed = Composition(
        target=target("llama"), drafter=drafter_of("ngram", "llama"), stop=stop_config(eos=[])
    )
    prompt = (5, 6, 7, 8, 9, 10, 11, 7, 8)
    assert decode(composed, prompt, 20).tokens == oracle("llama", prompt, 20)
