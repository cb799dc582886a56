"""The loop on tiny random models: text, caches, stops and limits against plain recomputation."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from specframe.accept.rejection import Rejection
from specframe.cache.static import Static as StaticCache
from specframe.drafter.base import Drafter
from specframe.types import AuxRows, Budget, Draft, Frontier, Needs, Proposal, StepRecord
from tests.models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    TINY,
    VOCAB,
    WINDOW,
    Composition,
    Scripted,
    assert_fresh,
    config,
    decode,
    draft,
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

PAIRS = [
    ("none", "chain"),
    ("ngram", "native"),
    *((kind, tree) for kind in ("ngram", "noisy", "perfect") for tree in ("chain", "static")),
    *((kind, "dynamic") for kind in ("ngram", "noisy", "perfect", "bad")),
]


class CacheWatch:
    """After each commit: the target's cache, and the draft's, equal fresh prefills."""

    def __init__(self, composed: Composition, family: str, prompt: Sequence[int]) -> None:
        self.composed, self.family, self.tokens = composed, family, list(prompt)
        self.draft_lengths: list[int] = []

    def observe(self, record: StepRecord) -> None:
        text = self.composed.drafter._context.tokens
        assert self.composed.cache.length == len(text) - 1
        assert_fresh(self.composed.cache, raw(self.family), text)
        held = self.composed.drafter._cache
        assert held.extent == held.length <= len(text) - 1
        assert_fresh(held, self.composed.drafter.model.model, text)
        self.draft_lengths.append(held.length)


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize(("drafter", "tree"), PAIRS)
@pytest.mark.parametrize("family", TINY)
def test_greedy_text_is_that_of_a_loop_without_cache(
    family: str, drafter: str, tree: str, cache: str
) -> None:
    for prompt in (PROMPT, LONG_PROMPT):
        composed = Composition(
            target=target(family),
            drafter=drafter_of(drafter, family, cache),
            tree=tree_of(tree),
            cache=CACHE_MAKERS[cache](),
        )
        assert decode(composed, prompt).tokens == oracle(family, prompt, 16)


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("family", TINY)
def test_rows_of_a_tree_have_the_logits_of_their_paths(family: str, tree: str) -> None:
    composed = Composition(
        target=target(family), drafter=drafter_of("noisy", family), tree=tree_of(tree)
    )
    for prompt in (PROMPT, LONG_PROMPT):
        loop = composed.decoding(12)
        loop.begin(prompt)
        while loop.finish_reason is None:
            context = list(loop.context.tokens)
            record = loop.step()
            made = record.draft
            for row in torch.nonzero(made.alive).flatten().tolist():
                nodes = torch.tensor([row])
                path = made.path_tokens(nodes, int(made.depths[row]))[0].tolist()
                expected = full_logits(raw(family), context + path)[-1]
                torch.testing.assert_close(record.out.logits[row], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("family", TINY)
def test_caches_after_each_commit_equal_fresh_prefills(family: str, tree: str, cache: str) -> None:
    composed = Composition(
        target=target(family),
        drafter=drafter_of("noisy", family, cache),
        tree=tree_of(tree),
        cache=CACHE_MAKERS[cache](),
    )
    for prompt in (PROMPT, (7,)):
        watch = CacheWatch(composed, family, prompt)
        outcome = decode(composed, prompt, 20, observers=[watch])
        assert outcome.num_accepted > 0
        assert len(watch.draft_lengths) == len(outcome.records)
        # Where it drafted it keeps up: the last accepted node and the new root are fed anew.
        for record, held in zip(outcome.records, watch.draft_lengths, strict=True):
            length = record.length_before + len(record.tokens)
            assert length - held <= 2 or record.draft.num_rows == 1


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("family", TINY)
def test_accepted_path_may_be_any_branch(family: str, cache: str) -> None:
    text = [*PROMPT, *oracle(family, PROMPT, 17)]
    for rank in (1, 2):
        composed = Composition(
            target=target(family),
            drafter=Scripted(text, rank=rank, width=3),
            tree=tree_of("dynamic"),
            cache=CACHE_MAKERS[cache](),
        )
        outcome = decode(composed)
        assert [*PROMPT, *outcome.tokens] == text[: len(PROMPT) + 16]
        moved = [one for one in outcome.records if one.path != list(range(1, len(one.path) + 1))]
        assert moved, "no accepted path had to be moved"
        assert_fresh(composed.cache, raw(family), outcome.loop.context.tokens)


@pytest.mark.parametrize("family", TINY)
def test_perfect_draft_is_accepted_in_full(family: str) -> None:
    composed = Composition(target=target(family), drafter=drafter_of("perfect", family))
    outcome = decode(composed, LONG_PROMPT, 21)
    assert [record.num_accepted for record in outcome.records] == [4] * 4
    penalised = replace(
        composed, sampling=sampling_config(repetition_penalty=1.5, no_repeat_ngram_size=2)
    )
    outcome = decode(penalised, LONG_PROMPT, 21)
    assert [record.num_accepted for record in outcome.records] == [4] * 4


@pytest.mark.parametrize("how", ["iid", "wor"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_perfect_draft_is_accepted_in_full_by_rejection(family: str, how: str) -> None:
    for changes in ({}, {"top_p": 0.8, "repetition_penalty": 1.3}):
        composed = Composition(
            target=target(family),
            drafter=drafter_of("perfect", family),
            tree=tree_of("chain", how),
            accept=Rejection(),
            how=how,
            sampling=sampling_config(1.0, **changes),
        )
        outcome = decode(composed, PROMPT, 21)
        assert [record.num_accepted for record in outcome.records] == [4] * 4


def test_perfect_draft_is_accepted_in_full_by_coupled_draws() -> None:
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("perfect", "llama"),
        tree=tree_of("chain", "coupled"),
        how="coupled",
        sampling=sampling_config(1.0),
    )
    assert [one.num_accepted for one in decode(composed, PROMPT, 21).records] == [4] * 4


class Garbage(Drafter):
    """Random candidates, repeats and holes among them."""

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        generator = torch.Generator().manual_seed(frontier.depth + int(frontier.tokens.sum()))
        found = torch.randint(-1, VOCAB, (len(frontier), 3), generator=generator)
        found[:, 2] = found[:, 0]
        return [Proposal(candidates=found)]


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_garbage_never_changes_text(tree: str, temperature: float) -> None:
    plain = Composition(target=target("llama"), sampling=sampling_config(temperature))
    composed = replace(plain, drafter=Garbage(), tree=tree_of(tree))
    assert decode(composed, PROMPT, 24).tokens == decode(plain, PROMPT, 24).tokens


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("family", TINY)
def test_prompt_of_one_token(family: str, cache: str) -> None:
    composed = Composition(
        target=target(family),
        drafter=drafter_of("noisy", family, cache),
        tree=tree_of("dynamic"),
        cache=CACHE_MAKERS[cache](),
    )
    assert decode(composed, (7,)).tokens == oracle(family, (7,), 16)


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("kind", ["bad", "noisy", "perfect"])
@pytest.mark.parametrize("length", [WINDOW - 3, WINDOW, WINDOW + 6])
def test_window_is_crossed_in_mid_block(length: int, kind: str, cache: str) -> None:
    prompt = LONG_PROMPT[:length]
    composed = Composition(
        target=target("gemma3"),
        drafter=drafter_of(kind, "gemma3", cache),
        tree=tree_of("static"),
        cache=CACHE_MAKERS[cache](),
    )
    outcome = decode(composed, prompt, 40)
    assert outcome.tokens == oracle("gemma3", prompt, 40)
    assert_fresh(composed.cache, raw("gemma3"), outcome.loop.context.tokens)


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
    from specframe.target.hf import HF

    small = HF.of(made, runtime=target("gpt2").runtime)
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
    assert composed.cache.extent == 0


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


class WithAux(Scripted):
    """A right draft and two auxiliary rows that see the whole tree."""

    needs = Needs(aux_rows=2, taps=("final_postnorm",))

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


@pytest.mark.parametrize("kind", ["ngram", "noisy", "perfect"])
@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_one_seed_gives_the_autoregressive_text(kind: str, tree: str, cache: str) -> None:
    hows = ("place",) if kind == "ngram" else ("place", "iid", "wor", "coupled")
    for family, seed in (("llama", 0), ("gemma3", 1), ("mixtral", 2)):
        plain = Composition(target=target(family), sampling=sampling_config(1.0), seed=seed)
        expected = decode(plain, PROMPT, 24, sequence=seed).tokens
        assert expected != oracle(family, PROMPT, 24)
        for how in hows:
            composed = replace(
                plain,
                drafter=drafter_of(kind, family, cache),
                tree=tree_of(tree, how),
                cache=CACHE_MAKERS[cache](),
                how=how,
            )
            assert decode(composed, PROMPT, 24, sequence=seed).tokens == expected


def test_seed_and_sequence_choose_the_text() -> None:
    plain = Composition(target=target("llama"), sampling=sampling_config(1.0))
    first = decode(plain).tokens
    assert decode(plain, sequence=1).tokens != first
    assert decode(replace(plain, seed=1)).tokens != first
    assert decode(plain).tokens == first


def test_logits_that_are_not_finite_name_model_and_dtype() -> None:
    from specframe.target.hf import HF

    made = model("llama")
    with torch.no_grad():
        made.model.layers[1].mlp.up_proj.weight[0, 0] = float("inf")
    broken = HF.of(made, runtime=target("llama").runtime)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM gave logits .* torch\.float64"):
        decode(Composition(target=broken))
    # Weights that overflow later are caught at the step that meets them.
    made = model("llama")
    text = oracle("llama", PROMPT, 4)
    with torch.no_grad():
        made.model.embed_tokens.weight[text[1]] = float("nan")
    late = Composition(target=HF.of(made, runtime=target("llama").runtime))
    loop = late.decoding(8)
    loop.begin(PROMPT)
    loop.step()
    with pytest.raises(ValueError, match="not finite"):
        loop.step()


def test_loop_goes_back_and_takes_a_given_tail() -> None:
    for kind in ("ngram", "noisy"):
        composed = Composition(
            target=target("llama"),
            drafter=drafter_of(kind, "llama"),
            tree=tree_of("static"),
            cache=CACHE_MAKERS["static"](),
        )
        loop = composed.decoding(24)
        loop.begin(PROMPT)
        for _ in range(4):
            loop.step()
        kept = loop.context.tokens[: len(PROMPT) + 2]
        loop.truncate(len(kept), tail=[9, 11, 13])
        assert loop.context.tokens == [*kept, 9, 11, 13]
        assert_fresh(composed.cache, raw("llama"), loop.context.tokens)
        while loop.finish_reason is None:
            loop.step()
        prompt = (*kept, 9, 11, 13)
        assert loop.context.tokens == [*prompt, *oracle("llama", prompt, 19)]
        assert_fresh(composed.cache, raw("llama"), loop.context.tokens)
        with pytest.raises(ValueError, match="cannot truncate"):
            loop.truncate(len(PROMPT))


def test_runs_leave_no_tensors_and_no_settings() -> None:
    made = target("llama").model
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("noisy", "llama", "static"),
        tree=tree_of("dynamic"),
        cache=CACHE_MAKERS["static"](),
    )
    engine = composed.engine(8)
    before = (made.config.to_json_string(), made.generation_config.to_json_string())
    for _ in range(2):
        engine.generate(PROMPT)

    def live() -> int:
        gc.collect()
        return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())

    count = live()
    for _ in range(50):
        engine.generate(PROMPT)
    assert live() <= count
    assert before == (made.config.to_json_string(), made.generation_config.to_json_string())


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("kind", ["ngram", "noisy"])
def test_prompts_leave_no_state(kind: str, cache: str) -> None:
    def made() -> Composition:
        return Composition(
            target=target("llama"),
            drafter=drafter_of(kind, "llama", cache),
            tree=tree_of("static", "place"),
            cache=CACHE_MAKERS[cache](),
            sampling=sampling_config(0.8, repetition_penalty=1.2),
        )

    prompts = (LONG_PROMPT, PROMPT, (7,))
    fresh = [made().engine(12).generate(one, sequence=i) for i, one in enumerate(prompts)]
    shared = made().engine(12)
    for order in ((0, 1, 2), (2, 1, 0), (1, 1, 0)):
        for i in order:
            torch.manual_seed(i)
            torch.rand(3)
            assert shared.generate(prompts[i], sequence=i) == fresh[i]


def test_global_randomness_is_neither_read_nor_changed() -> None:
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("noisy", "llama"),
        tree=tree_of("static", "wor"),
        accept=Rejection(),
        how="wor",
        sampling=sampling_config(1.0),
    )
    torch.manual_seed(1)
    first, state = decode(composed).tokens, torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert decode(composed).tokens == first


def test_a_failed_run_leaves_no_state() -> None:
    """A cache that met numbers that are not finite is clean for the next prompt."""
    from specframe.target.hf import HF

    made = model("llama")
    with torch.no_grad():
        made.model.embed_tokens.weight[1] = float("nan")
    for cache in CACHE_MAKERS.values():
        composed = Composition(
            target=HF.of(made, runtime=target("llama").runtime), cache=cache()
        )
        with pytest.raises(ValueError, match="not finite"):
            decode(composed, [1] * 20, 8)
        assert decode(composed, PROMPT, 4).tokens == oracle("llama", PROMPT, 4)


def test_low_precision_keeps_its_lengths() -> None:
    """Two rows of the head are equal up to rounding: no claim of equal text, only of a sane run."""
    from specframe.target.hf import HF

    made = model("llama")
    with torch.no_grad():
        head = made.lm_head.weight
        head[12] = head[11] * (1 + 2**-9)
    low = HF.of(made.to(torch.bfloat16), runtime=target("llama").runtime)
    lengths = set()
    for tree in ("chain", "static", "dynamic"):
        composed = Composition(target=low, drafter=lm_of(low, low), tree=tree_of(tree))
        outcome = decode(composed, PROMPT, 24)
        lengths.add(len(outcome.tokens))
        assert all(0 <= token < VOCAB for token in outcome.tokens)
    assert lengths == {24}


def test_draft_vocabularies_padded_otherwise() -> None:
    for size in (90, 100):
        made = model("llama", seed=4, vocab_size=size)
        from specframe.target.hf import HF

        small = HF.of(made, runtime=target("llama").runtime)
        text = oracle("llama", (95, 96, 3), 16)
        for how, temperature in (("place", 0.0), ("wor", 1.0)):
            plain = Composition(target=target("llama"), sampling=sampling_config(temperature))
            composed = replace(
                plain,
                drafter=lm_of(small, target("llama"), trust=True),
                tree=tree_of("static", how),
                how=how,
            )
            outcome = decode(composed, (95, 96, 3))
            assert outcome.tokens == decode(plain, (95, 96, 3)).tokens
            assert temperature or outcome.tokens == text
            for record in outcome.records:
                assert int(record.draft.tokens.max()) < VOCAB
