"""Processors in the loop: at every node with that node's own prefix."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.law.user_classes import user_class
from tests.small_models import (
    LONG_PROMPT,
    PROMPT,
    Composition,
    decode,
    drafter_of,
    full_logits,
    lm_of,
    oracle,
    raw,
    sampling_config,
    speller,
    stop_config,
    target,
    tree_of,
)
from tests.turns import in_turn
from tests.user_modules import written

RULES = '''
import torch

class Recorder:
    """Stores every prefix that it is asked about."""
    seen = []

    def __call__(self, ids, scores):
        self.seen.append(ids.clone())
        return scores

class OddOnly:
    """Token ids at odd positions are odd."""

    def __call__(self, ids, scores):
        if ids.shape[1] % 2:
            scores = scores.clone()
            scores[:, ::2] = float("-inf")
        return scores

class OnlyTwo:
    """All but two tokens are banned."""

    def __call__(self, ids, scores):
        kept = torch.full_like(scores, float("-inf"))
        kept[:, [3, 4]] = scores[:, [3, 4]]
        return kept
'''


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of a user's own processors."""
    return written(RULES, stem="rules_of", folder=tmp_path, patch=monkeypatch)


PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3},
]


@lru_cache
def generated(family: str, changes: tuple[tuple[str, Any], ...]) -> list[int]:
    """What transformers' generate answers."""
    ids = torch.tensor([LONG_PROMPT])
    numbers = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    text = raw(family).generate(ids, **numbers, **dict(changes))
    return text[0, len(LONG_PROMPT) :].tolist()


@pytest.mark.parametrize(
    ("kind", "tree", "changes"),
    in_turn(
        itertools.product(("ngram", "noisy", "perfect"), ("chain", "static", "dynamic")), PENALTIES
    ),
)
def test_greedy_text_under_penalties_is_that_of_generate(
    kind: str, tree: str, changes: dict[str, Any]
) -> None:
    for family in ("llama", "gemma3"):
        own = generated(family, tuple(changes.items()))
        assert own != oracle(family, LONG_PROMPT, 24)
        composed = Composition(
            target=target(family),
            drafter=drafter_of(kind, family),
            tree=tree_of(tree),
            sampling=sampling_config(**changes),
        )
        assert decode(composed, LONG_PROMPT, 24).tokens == own


@pytest.mark.parametrize("kind", ["none", "perfect", "noisy"])
@pytest.mark.parametrize("tree", ["chain", "static"])
def test_minimum_length_bans_the_end(kind: str, tree: str) -> None:
    text = oracle("llama", PROMPT, 16)
    for place, minimum in ((4, 6), (4, 5), (4, 4), (0, 3)):
        ends = [text[place], 96]
        own = (
            raw("llama")
            .generate(
                torch.tensor([PROMPT]),
                max_new_tokens=16,
                min_new_tokens=minimum,
                eos_token_id=ends,
                do_sample=False,
                pad_token_id=0,
            )[0, len(PROMPT) :]
            .tolist()
        )
        composed = Composition(
            target=target("llama"),
            drafter=drafter_of(kind, "llama"),
            tree=tree_of(tree),
            stop=stop_config(eos=ends),
            sampling=sampling_config(min_new_tokens=minimum),
        )
        assert decode(composed).tokens == own
        assert len(own) >= minimum


@pytest.mark.parametrize("kind", ["ngram", "lm"])
def test_banned_words_never_surface(kind: str) -> None:
    made = speller()
    free = Composition(target=made).engine(24)
    text = free.generate("hello").text
    words = [text[2:4], text[9]]
    ours = made.tokenizer
    ids = [ours.encode_plain(form) for word in words for form in (word, " " + word)]
    prompt = ours.encode(f"hello{text}")  # a prompt that offers them to be copied
    own = made.model.generate(
        torch.tensor([prompt]),
        max_new_tokens=24,
        do_sample=False,
        bad_words_ids=ids,
        pad_token_id=0,
        eos_token_id=1,
    )[0, len(prompt) :].tolist()
    composed = Composition(
        target=made,
        drafter=lm_of(made, made) if kind == "lm" else drafter_of("ngram", "llama"),
        tree=tree_of("dynamic"),
        sampling=sampling_config(bad_words=words),
    )
    answer = composed.engine(24).generate(prompt)
    assert answer.tokens == own
    assert words[1] not in answer.text
    assert words[0] not in answer.text


def test_recorder_sees_the_true_prefixes(rules: str) -> None:
    recorder = user_class(f"{rules}:Recorder", where="", base="LogitsProcessor")
    for kind, tree in (("ngram", "chain"), ("ngram", "dynamic"), ("none", "chain")):
        composed = Composition(
            target=target("llama"),
            drafter=drafter_of(kind, "llama"),
            tree=tree_of(tree),
            sampling=sampling_config(processors=[f"{rules}:Recorder"]),
        )
        loop = composed.decoding(24)
        recorder.seen.clear()
        loop.begin(LONG_PROMPT)
        assert [one.tolist() for one in recorder.seen] == [[list(LONG_PROMPT)]]
        while loop.finish_reason is None:
            context = list(loop.context.tokens)
            recorder.seen.clear()
            record = loop.step()
            assert len(recorder.seen) == record.draft.depth + 1
            for depth, row in enumerate(recorder.seen[: len(record.tokens)]):
                assert row.tolist() == [[*context, *record.tokens[:depth]]]


def test_recorder_sees_the_true_prefixes_of_draft_nodes(rules: str) -> None:
    recorder = user_class(f"{rules}:Recorder", where="", base="LogitsProcessor")
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("noisy", "llama"),
        tree=tree_of("static"),
        sampling=sampling_config(processors=[f"{rules}:Recorder"]),
    )
    loop = composed.decoding(24)
    loop.begin(LONG_PROMPT)
    context = list(loop.context.tokens)
    recorder.seen.clear()
    record = loop.step()
    draft, rows = record.draft, []
    for row in range(draft.num_rows):
        path = draft.path_tokens(torch.tensor([row]), int(draft.depths[row]))[0].tolist()
        rows.append([*context, *path])
    for asked in recorder.seen[: draft.depth]:
        assert all(prefix in rows for prefix in asked.tolist())


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
@pytest.mark.parametrize("kind", ["ngram", "noisy", "perfect"])
def test_rule_that_depends_on_position(kind: str, tree: str, rules: str) -> None:
    rule = user_class(f"{rules}:OddOnly", where="", base="LogitsProcessor")()
    tokens = list(PROMPT)
    for _ in range(24):
        scores = rule(torch.tensor([tokens]), full_logits(raw("llama"), tokens)[-1:])
        tokens.append(int(scores.argmax()))
    settings = sampling_config(processors=[f"{rules}:OddOnly"])
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of(kind, "llama"),
        tree=tree_of(tree),
        sampling=settings,
    )
    outcome = decode(composed, PROMPT, 24)
    assert outcome.tokens == tokens[len(PROMPT) :]
    if kind == "perfect" and tree == "chain":
        assert [one.num_accepted for one in outcome.records] == [4] * 4 + [2]
    sampled = replace(composed, sampling=replace(settings, temperature=1.0))
    plain = Composition(target=target("llama"), sampling=sampled.sampling)
    assert decode(sampled).tokens == decode(plain).tokens


@pytest.mark.parametrize("tree", ["static", "dynamic"])
def test_fewer_possible_tokens_than_children(tree: str, rules: str) -> None:
    """Places that no token can fill are no nodes, and no processor sees them as a prefix."""
    hows = ("place", "wor", "iid", "coupled") if tree == "static" else ("place",)
    cases = [{"top_k": 1}, {"processors": [f"{rules}:OnlyTwo"]}]
    for changes in cases:
        for how in hows:
            settings = sampling_config(1.0, repetition_penalty=1.4, **changes)
            plain = Composition(target=target("llama"), sampling=settings)
            composed = replace(
                plain,
                drafter=drafter_of("noisy", "llama"),
                tree=tree_of(tree, how),
                how=how,
            )
            assert decode(composed).tokens == decode(plain).tokens
