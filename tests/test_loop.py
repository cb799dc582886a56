"""The loop on tiny random models: text, trees and caches against plain recomputation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from specframe.accept.rejection import Rejection
from specframe.drafter.base import Drafter
from specframe.records import StepRecord
from specframe.types import Frontier, Proposal
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    TINY,
    VOCAB,
    WINDOW,
    Composition,
    Scripted,
    assert_fresh,
    decode,
    drafter_of,
    full_logits,
    oracle,
    raw,
    sampling_config,
    target,
    tree_of,
)
from tests.turns import in_turn

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
        assert self.composed.cache.lengths[0] == len(text) - 1
        assert_fresh(self.composed.cache, raw(self.family), text)
        held = self.composed.drafter._cache
        assert held.extents[0] == held.lengths[0] <= len(text) - 1
        assert_fresh(held, self.composed.drafter.model.model, text)
        self.draft_lengths.append(held.lengths[0])


@pytest.mark.parametrize("shift", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("drafter", "tree"), PAIRS)
@pytest.mark.parametrize(("place", "family"), [*enumerate(TINY)])
def test_greedy_text_is_that_of_a_loop_without_cache(
    place: int, family: str, drafter: str, tree: str, shift: int
) -> None:
    """Each prompt with a cache in turn; with the other one in the slow suite."""
    caches = [*CACHE_MAKERS] * 2
    turn = (place + PAIRS.index((drafter, tree)) + shift) % 2
    for prompt, cache in zip((PROMPT, LONG_PROMPT), caches[turn:], strict=False):
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


@pytest.mark.parametrize(
    ("family", "tree", "cache"),
    in_turn(itertools.product(TINY, ("chain", "static", "dynamic")), CACHE_MAKERS),
)
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


@pytest.mark.parametrize(
    ("length", "kind", "cache"),
    in_turn(
        itertools.product((WINDOW - 3, WINDOW, WINDOW + 6), ("bad", "noisy", "perfect")),
        CACHE_MAKERS,
    ),
)
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
