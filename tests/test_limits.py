"""Where the loop ends: lengths, contexts, capacities, auxiliary rows and end tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specframe.cache.static import StaticCache as StaticCache
from specframe.drafter.base import Traits
from specframe.target.hf import HF
from specframe.types import AuxRows, Budget, Draft, Needs
from tests.small_models import (
    CACHE_MAKERS,
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


def test_draft_with_a_short_context_is_refused() -> None:
    small = toy(blend=0.1, max_positions=10)
    composed = Composition(target=toy(), drafter=lm_of(small, toy()))
    decode(composed, (1, 2), 9)
    with pytest.raises(ValueError, match=r"drafter's context is 10 tokens, the run needs 11"):
        decode(composed, (1, 2), 10)


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
