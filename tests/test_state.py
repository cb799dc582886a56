"""What a run depends on and what it leaves behind: seeds, failures, memory."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from specframe.accept.rejection import Rejection
from specframe.target.hf import HF
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    assert_fresh,
    decode,
    drafter_of,
    lm_of,
    model,
    oracle,
    raw,
    sampling_config,
    target,
    tree_of,
)
from tests.turns import in_turn


@lru_cache
def undrafted(family: str, seed: int) -> tuple[Composition, list[int]]:
    """A composition without a draft, and the text of its seed."""
    plain = Composition(target=target(family), sampling=sampling_config(1.0), seed=seed)
    return plain, decode(plain, PROMPT, 16, sequence=seed).tokens


@pytest.mark.parametrize(
    ("kind", "tree", "family"),
    in_turn(
        itertools.product(("ngram", "noisy", "perfect"), ("chain", "static", "dynamic")),
        ("llama", "gemma3", "mixtral"),
        every=2,
    ),
)
def test_one_seed_gives_the_autoregressive_text(kind: str, tree: str, family: str) -> None:
    """Caches in turn: each family and each kind of draw meets both."""
    hows = ("place",) if kind == "ngram" else ("place", "iid", "wor", "coupled")
    seed = ("llama", "gemma3", "mixtral").index(family)
    plain, expected = undrafted(family, seed)
    assert expected != oracle(family, PROMPT, 16)
    for turn, how in enumerate(hows, seed):
        cache = list(CACHE_MAKERS)[turn % len(CACHE_MAKERS)]
        composed = replace(
            plain,
            drafter=drafter_of(kind, family, cache),
            tree=tree_of(tree, how),
            cache=CACHE_MAKERS[cache](),
            how=how,
        )
        assert decode(composed, PROMPT, 16, sequence=seed).tokens == expected


def test_seed_and_sequence_choose_the_text() -> None:
    plain = Composition(target=target("llama"), sampling=sampling_config(1.0))
    first = decode(plain).tokens
    assert decode(plain, sequence=1).tokens != first
    assert decode(replace(plain, seed=1)).tokens != first
    assert decode(plain).tokens == first


def test_logits_that_are_not_finite_name_model_and_dtype() -> None:
    made = model("llama")
    with torch.no_grad():
        made.model.layers[1].mlp.up_proj.weight[0, 0] = float("inf")
    broken = HF.of(made, runtime=RUNTIME)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM gave logits .* torch\.float64"):
        decode(Composition(target=broken))
    # Weights that overflow later are caught at the step that meets them.
    made = model("llama")
    text = oracle("llama", PROMPT, 4)
    with torch.no_grad():
        made.model.embed_tokens.weight[text[1]] = float("nan")
    late = Composition(target=HF.of(made, runtime=RUNTIME))
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


@pytest.mark.slow
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
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

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
    made = model("llama")
    with torch.no_grad():
        made.model.embed_tokens.weight[1] = float("nan")
    for cache in CACHE_MAKERS.values():
        composed = Composition(target=HF.of(made, runtime=RUNTIME), cache=cache())
        with pytest.raises(ValueError, match="not finite"):
            decode(composed, [1] * 20, 8)
        assert decode(composed, PROMPT, 4).tokens == oracle("llama", PROMPT, 4)


def test_low_precision_keeps_its_lengths() -> None:
    """Two rows of the head are equal up to rounding: no claim of equal text, only of a sane run."""
    made = model("llama")
    with torch.no_grad():
        head = made.lm_head.weight
        head[12] = head[11] * (1 + 2**-9)
    low = HF.of(made.to(torch.bfloat16), runtime=RUNTIME)
    lengths = set()
    for tree in ("chain", "static", "dynamic"):
        composed = Composition(target=low, drafter=lm_of(low, low), tree=tree_of(tree))
        outcome = decode(composed, PROMPT, 24)
        lengths.add(len(outcome.tokens))
        assert all(0 <= token < VOCAB for token in outcome.tokens)
    assert lengths == {24}
