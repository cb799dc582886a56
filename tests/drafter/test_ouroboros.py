"""Ouroboros against a slow account of it in plain Python, which runs whole sequences, no cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

import specframe
from specframe.cache.static import StaticCache as StaticCache
from specframe.drafter.ouroboros import Ouroboros, Verified
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.lookup.ngram_pool import NgramPool
from specframe.target.base import Target
from specframe.target.hf import HF
from specframe.testing.host_reads import HostReads
from specframe.tree.native import NativeTree
from tests.drafter.edges import ends_within, law_error, report_of_three
from tests.drafter.slow_accounts import Window, likeliest, num_nodes, one_pass, whole
from tests.small_models import (
    CACHE_MAKERS,
    LAYERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    Outcome,
    assert_fresh,
    decode,
    lm_of,
    model,
    oracle,
    raw,
    sampling_config,
    small_table,
    target,
    toy,
    tree_of,
)
from tests.test_syncs import watch
from tests.turns import in_turn

SIZES: dict[str, Any] = {"draft_tokens": 4, "window": 3, "ngram": 4, "phrases": 3}
COUNT = 26
TOY_PROMPT = (1, 2, 3, 1, 2, 5)
TREES = ("chain", "static", "dynamic", "native")

# A draft by name: a family and how its model is changed.
PAIRS = ("toy:0.25", "llama:noisy", "gemma3:noisy", "llama:2", "gpt2:2")


def family_of(name: str) -> str:
    return name.partition(":")[0]


def prompt_of(name: str) -> tuple[int, ...]:
    return TOY_PROMPT if family_of(name) == "toy" else PROMPT


@lru_cache
def drafting(name: str) -> Any:
    """The model that drafts, never wrapped; "llama" is the target, "llama:2" its first layers."""
    family, _, kind = name.partition(":")
    if family == "toy":
        return toy(blend=float(kind or 0))
    if not kind:
        return raw(family)
    made = copy.deepcopy(raw(family))
    if kind.isdecimal():
        body = made.transformer if family == "gpt2" else made.model
        kept = "h" if family == "gpt2" else "layers"
        setattr(body, kept, getattr(body, kept)[: int(kind)])
        made.config.num_hidden_layers = int(kind)
        return made
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in made.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(0.02 * noise * weight.std())
    return made


@lru_cache
def draft_model(name: str) -> Target:
    """The same for a drafter, which runs the target itself where it takes first layers."""
    family, _, kind = name.partition(":")
    if family == "toy":
        return drafting(name)
    if kind == "noisy":
        return HF.of(copy.deepcopy(drafting(name)), runtime=RUNTIME)
    return target(family)


def large(name: str) -> Target:
    return toy() if family_of(name) == "toy" else target(family_of(name))


def ouroboros(name: str = "llama:noisy", cache: str = "dynamic", **changes: Any) -> Ouroboros:
    """A small one, with `changes`."""
    kind = name.partition(":")[2]
    values = {**SIZES, "layers": int(kind) if kind.isdecimal() else None, "keep_pool": False}
    return Ouroboros(
        **{**values, **changes},
        model=draft_model(name),
        target=large(name),
        new_cache=CACHE_MAKERS[cache],
        trust_vocabulary=False,
    )


def native(drafter: Ouroboros) -> NativeTree:
    """Room for every phrase whole."""
    tail = drafter.ngram - 1
    rows = 1 + drafter.draft_tokens + drafter.phrases * tail
    return NativeTree(depth=drafter.draft_tokens + tail, max_nodes=rows, proposal="place")


def run(
    drafter: Ouroboros,
    name: str = "llama:noisy",
    prompt: Sequence[int] | None = None,
    count: int = COUNT,
) -> Outcome:
    """Greedy text with every branch verified."""
    composed = Composition(target=large(name), drafter=drafter, tree=native(drafter))
    return decode(composed, prompt_of(name) if prompt is None else prompt, count)


# The slow account


def after(name: str, tokens: Sequence[int]) -> int:
    """The greedy token of a model after a sequence."""
    return likeliest(drafting(name), tuple(tokens))[0]


def text_of(family: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """Greedy text of the target alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(after(family, tuple(tokens)))
    return tokens[len(prompt) :]


class Slow:
    """One answer, step by step; the pool is a list of n-grams, the oldest first."""

    def __init__(self, name: str, prompt: Sequence[int], sizes: dict[str, Any]) -> None:
        self.name, self.family = name, family_of(name)
        self.gamma, self.ngram, self.most = (
            sizes[key] for key in ("draft_tokens", "ngram", "phrases")
        )
        self.text = [*prompt, after(self.family, prompt)]
        self.window = Window(
            prompt,
            width=sizes["window"],
            ngram=self.ngram,
            most=max(sizes["window"], self.most),
            after=partial(after, name),
        )
        self.steps: list[list[int]] = []
        self.trees: list[int] = []
        self.passes: list[int] = []
        self.extended = self.reused = self.corrected = 0

    def write(self, count: int) -> list[int]:
        """The draft model's own lookahead."""
        written: list[int] = []
        self.passes.append(0)
        while len(written) < count:
            room, before = count - len(written), [*self.text, *written]
            guesses = [one[: room - 1] for one in self.window.newest(before[-1], self.window.width)]
            new = one_pass(partial(after, self.name), before, guesses, room)
            self.window.look_ahead(before)
            written += new
            self.passes[-1] += 1
        return written

    def step(self, left: int) -> None:
        """One pass, with `left` tokens still to be emitted."""
        text = list(self.text)
        written = self.write(min(self.gamma, left - 1)) if left > 1 else []
        tails = self.window.newest(written[-1], self.most) if written else []
        branches = [[*written, *tail][: left - 1] for tail in tails or [[]]]
        emitted = one_pass(partial(after, self.family), text, branches, left)
        self.trees.append(num_nodes(branches))
        self.text += emitted
        self.steps.append(emitted)
        self.extended += len(emitted) > len(written) + 1
        if written:
            self.learn(text, written, tails, left - 1)
            accepted = 0
            while written[accepted : accepted + 1] == emitted[accepted : accepted + 1] != []:
                accepted += 1
            self.reuse(text, written, accepted)

    def learn(
        self, text: list[int], written: list[int], tails: list[list[int]], depth: int
    ) -> None:
        """Phrases that were verified whole are put right where they stand."""
        better = {}
        for tail in tails:
            if len(written) + len(tail) - 1 > depth:
                continue
            said = [
                after(self.family, (*text, *written, *tail[:place])) for place in range(len(tail))
            ]
            better[(written[-1], *tail)] = (written[-1], *said)
        self.corrected += sum(old != new for old, new in better.items())
        pool = [better.get(one, one) for one in self.window.pool]
        # Of two that become equal the newer place stays.
        self.window.pool = [one for place, one in enumerate(pool) if one not in pool[place + 1 :]]

    def reuse(self, text: list[int], written: list[int], accepted: int) -> None:
        """Rejected drafted tokens: what the target says after each, while the draft agrees."""
        for start in range(accepted, len(written)):
            said: list[int] = []
            for place in range(start, len(written)):
                said.append(after(self.family, (*text, *written[: place + 1])))
                if place + 1 == len(written) or written[place + 1] != said[-1]:
                    break
            if len(said) >= self.ngram - 1:
                self.reused += 1
                self.window.remember([written[start], *said[: self.ngram - 1]])

    @property
    def by_token(self) -> dict[int, list[tuple[int, ...]]]:
        found: dict[int, list[tuple[int, ...]]] = {}
        for first, *rest in self.window.pool:
            found.setdefault(first, []).append(tuple(rest))
        return found


@lru_cache
def slow(name: str, changes: tuple[tuple[str, int], ...] = (), count: int = COUNT) -> Slow:
    """The account of a whole answer."""
    prompt = prompt_of(name)
    found: Slow = whole(Slow(name, prompt, {**SIZES, **dict(changes)}), prompt, count)
    return found


CASES: list[dict[str, int]] = [
    {},
    {"window": 1, "phrases": 1},
    {"draft_tokens": 7, "window": 4, "ngram": 3},
    {"draft_tokens": 1, "phrases": 5},
    {"window": 0, "draft_tokens": 6, "ngram": 3},
    {"phrases": 0},
]


def counted(drafter: Ouroboros) -> list[int]:
    """Rows of each pass of the window, from now on."""
    rows: list[int] = []
    inner = drafter._writer._forward

    def forward(draft: Any, *, first: int) -> list[int]:
        rows.append(draft.num_rows + (0 if draft.aux is None else len(draft.aux.tokens)))
        return inner(draft, first=first)

    drafter._writer._forward = forward  # type: ignore[method-assign]
    return rows


@pytest.mark.parametrize(("changes", "name"), in_turn([(one,) for one in CASES], PAIRS), ids=str)
def test_each_step_is_that_of_the_slow_account(name: str, changes: dict[str, int]) -> None:
    expected = slow(name, tuple(changes.items()))
    drafter = ouroboros(name, **changes)
    rows = counted(drafter)
    outcome = run(drafter, name)
    assert [record.tokens for record in outcome.records] == expected.steps
    assert outcome.tokens == text_of(family_of(name), prompt_of(name), COUNT)
    assert [record.draft.num_rows - 1 for record in outcome.records] == expected.trees
    assert len(rows) == sum(expected.passes)
    held = {key: list(rest) for key, rest in drafter._pool._phrases.items()}
    assert held == expected.by_token


@pytest.mark.slow
def test_every_part_of_the_account_is_met() -> None:
    """Else the comparison of the steps would compare nothing."""
    made = [slow(name, tuple(changes.items())) for name in PAIRS for changes in CASES]
    for part in ("extended", "reused", "corrected"):
        assert sum(getattr(one, part) for one in made) > 3, part
    spared = [sum(map(len, one.steps)) - sum(one.passes) for one in made]
    assert max(spared) > 0, "a phrase spared the draft model a pass"


def test_without_window_and_phrases_it_is_a_draft_model() -> None:
    plain = Composition(
        target=target("llama"),
        drafter=lm_of(draft_model("llama:noisy"), target("llama")),
        tree=tree_of("chain"),
    )
    expected = decode(plain, PROMPT, COUNT)
    bare = run(ouroboros(window=0, phrases=0))
    assert [one.tokens for one in bare.records] == [one.tokens for one in expected.records]
    assert 0 < bare.num_accepted < COUNT - len(bare.records)


# The draft model


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("layers", [None, LAYERS])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_a_draft_equal_to_the_target_is_accepted_in_full(
    family: str, layers: int | None, cache: str
) -> None:
    drafter = ouroboros(family, cache, layers=layers)
    composed = Composition(
        target=target(family),
        drafter=drafter,
        tree=native(drafter),
        cache=CACHE_MAKERS[cache](),
    )
    loop = composed.decoding(COUNT)
    tokens = loop.begin(LONG_PROMPT)
    while loop.finish_reason is None:
        left = COUNT - len(tokens)
        record = loop.step()
        tokens += record.tokens
        assert record.num_accepted >= min(drafter.draft_tokens, left - 1)
        assert_fresh(drafter._writer.cache, raw(family), loop.context.tokens)
        # Only what the target added to the draft is left to feed.
        assert drafter._writer.cache.lengths[0] >= len(loop.context) - drafter.ngram - 1
    assert tokens == oracle(family, LONG_PROMPT, COUNT)


@pytest.mark.parametrize("name", ["llama:noisy", "gemma3:noisy"])
def test_keys_of_rejected_tokens_and_of_the_window_are_not_kept(name: str) -> None:
    drafter = ouroboros(name)
    composed = Composition(target=large(name), drafter=drafter, tree=native(drafter))
    loop = composed.decoding(COUNT)
    loop.begin(LONG_PROMPT)
    while loop.finish_reason is None:
        loop.step()
        assert_fresh(drafter._writer.cache, drafting(name), loop.context.tokens)


def test_goes_back_with_the_context() -> None:
    drafter = ouroboros("llama")
    loop = Composition(target=target("llama"), drafter=drafter, tree=tree_of("native")).decoding(60)
    loop.begin(PROMPT)
    for _ in range(4):
        loop.step()
    for length in (len(PROMPT) + 9, len(PROMPT) + 1):
        loop.truncate(length)
        assert drafter._writer.cache.lengths[0] <= length - 1
        assert loop.step().num_accepted >= 4
        assert_fresh(drafter._writer.cache, raw("llama"), loop.context.tokens)
    kept = loop.context.tokens[: len(PROMPT) + 2]
    tail = [(3 * place + 1) % VOCAB for place in range(40)]
    loop.truncate(len(kept), tail)
    assert loop.step().num_accepted >= 4
    assert_fresh(drafter._writer.cache, raw("llama"), loop.context.tokens)


@pytest.mark.parametrize("window", [1, 4])
def test_a_pass_has_as_many_rows_as_the_formula_says(window: int) -> None:
    """Guesses that share nothing, so that the trie merges none of them."""
    drafter = ouroboros(window=window, ngram=5, draft_tokens=8, phrases=2)
    loop = Composition(target=target("llama"), drafter=drafter, tree=native(drafter)).decoding(60)
    loop.begin(PROMPT)
    loop.step()
    rows = counted(drafter)
    for start in range(window + 1):
        ngram = [loop.context.tokens[-1], *range(10 * start, 10 * start + 4)]
        drafter._pool.add(ngram)
    pending = len(loop.context) - drafter._writer.cache.lengths[0]
    with torch.inference_mode():
        draft = loop.propose()
    assert rows[0] == pending - 1 + (5 - 1) * 2 * window
    assert draft.num_rows <= 1 + 8 + 2 * 4


@pytest.mark.parametrize("size", [90, 100])
def test_ids_that_one_side_lacks_are_never_drafted(size: int) -> None:
    made = model("llama", vocab_size=size)
    common = min(size, VOCAB)
    with torch.no_grad():
        for (key, ours), theirs in zip(
            made.named_parameters(), raw("llama").parameters(), strict=True
        ):
            if "embed" in key or "lm_head" in key:
                ours[:common] = theirs[:common]
            else:
                ours.copy_(theirs)
    small = HF.of(made, runtime=RUNTIME)
    with pytest.raises(IncompatibleComponents, match=r"another vocabulary than target=Llama"):
        paired(small, target("llama"))
    for prompt in ((95, 96, 3, 17), LONG_PROMPT[:8]):
        drafter = paired(small, target("llama"), trust_vocabulary=True)
        outcome = run(drafter, prompt=prompt)
        assert outcome.tokens == oracle("llama", prompt, COUNT)
        assert prompt[0] == 95 or outcome.num_accepted >= 6


def paired(small: Target, big: Target, **changes: Any) -> Ouroboros:
    """One whose draft model is given."""
    values = {**SIZES, "layers": None, "keep_pool": False, "trust_vocabulary": False, **changes}
    return Ouroboros(model=small, target=big, new_cache=CACHE_MAKERS["dynamic"], **values)


def test_how_many_layers_draft() -> None:
    both = {"small": target("llama"), "big": target("llama")}
    assert paired(**both, layers="auto")._writer.model.num_layers == LAYERS // 2
    assert paired(**both, layers=None)._writer.model is target("llama")
    assert paired(**both, layers=2)._writer.model.num_layers == 2
    deeper = HF.of(model("llama", num_hidden_layers=4), runtime=RUNTIME)
    assert paired(deeper, target("llama"), layers="auto")._writer.model is deeper
    with pytest.raises(ValueError, match=r"drafter\.layers=4: Llama.* has 3 layers; give 1 \.\. 3"):
        paired(**both, layers=4)
    with pytest.raises(IncompatibleComponents, match=r"drafter\.layers=1: toy cannot .* use "):
        paired(toy(), toy(), layers=1)
    assert paired(toy(), toy(), layers="auto")._writer.model.num_layers == 1


def test_first_layers_leave_the_cache_of_the_others_alone() -> None:
    drafter = ouroboros("llama:2")
    run(drafter, "llama:2")
    assert sorted(drafter._writer.cache._keys) == [0, 1]


# The pool


def test_what_the_target_says_after_rejected_tokens_becomes_phrases() -> None:
    """By hand: the root 1, written 10 11 12 13, of which the target wanted 20 instead of 10."""
    drafter = ouroboros(ngram=3, phrases=1)
    drafter._pool = NgramPool(size=3)
    drafter._pool.add([13, 40, 41])
    drafter._written, drafter._tails = [10, 11, 12, 13], [(40, 41)]
    tokens, parents = [1, 10, 11, 12, 13, 40, 41, 99], [-1, 0, 1, 2, 3, 4, 5, -2]
    said = [20, 11, 12, 50, 60, 61, 62, 63]
    drafter._learn(Verified([*tokens, *parents, *said]), agreed=0)
    assert drafter._pool.after(10) == [(11, 12)]
    assert drafter._pool.after(11) == [(12, 50)]
    assert drafter._pool.after(12) == [], "one token is no phrase"
    assert drafter._pool.after(13) == [(60, 61)], "put right in its place"
    drafter._learn(Verified([*tokens, *parents, *said]), agreed=1)
    assert len(drafter._pool) == 3


def test_phrases_are_corrected_where_they_stand() -> None:
    pool = NgramPool(size=4)
    for rest in ([2, 3], [4, 5], [6, 7]):
        pool.add([1, *rest])
    pool.correct(1, {(2, 3): (8, 9)})
    assert pool.after(1) == [(6, 7), (4, 5), (8, 9)]
    pool.correct(1, {(8, 9): (6, 7)})
    assert pool.after(1) == [(6, 7), (4, 5)]
    pool.correct(3, {(1, 1): (2, 2)})
    assert pool.after(3) == []
    assert len(pool) == 2


def test_a_full_pool_stays_within_its_size() -> None:
    drafter = ouroboros("toy:0.25", window=2, phrases=1)
    run(drafter, "toy:0.25", count=60)
    held = drafter._pool._phrases
    assert max(map(len, held.values())) == 2
    assert {len(rest) for phrases in held.values() for rest in phrases} == {drafter.ngram - 1}


@pytest.mark.parametrize("keep", [False, True])
def test_a_pool_of_rubbish_changes_no_text(keep: bool) -> None:
    drafter = ouroboros("toy:0.25", keep_pool=keep)
    for first in range(6):
        for place in range(3):
            drafter._pool.add([first, place, (first + place) % 6, 5 - place])
    outcome = run(drafter, "toy:0.25")
    assert outcome.tokens == text_of("toy", TOY_PROMPT, COUNT)
    assert drafter.warm is (True if keep else None)


def test_nothing_goes_over_unless_asked() -> None:
    alone = run(ouroboros(), prompt=LONG_PROMPT)
    drafter = ouroboros()
    run(drafter)
    again = run(drafter, prompt=LONG_PROMPT)
    assert drafter.warm is None
    assert [one.tokens for one in again.records] == [one.tokens for one in alone.records]
    assert [one.draft.num_rows for one in again.records] == [
        one.draft.num_rows for one in alone.records
    ]


def test_what_is_kept_helps_and_is_said() -> None:
    drafter = ouroboros("toy:0.25", keep_pool=True)
    rows = counted(drafter)
    first = run(drafter, "toy:0.25")
    assert drafter.warm is False
    cold = len(rows)
    second = run(drafter, "toy:0.25")
    assert drafter.warm is True
    assert second.tokens == first.tokens
    assert (len(second.records), len(rows) - cold) < (len(first.records), cold)
    assert second.records[0].draft.num_rows > 1 + drafter.draft_tokens


def test_the_report_of_a_run_says_cold_and_warm(tmp_path: Path) -> None:
    said, metrics = report_of_three(tmp_path, "drafter=ouroboros", "drafter.keep_pool=true")
    assert said == [False, True, True]
    assert (metrics["cold"]["num_prompts"], metrics["warm"]["num_prompts"]) == (1, 2)


# Edges


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", ["llama:noisy", "gpt2:2"])
def test_a_prompt_of_one_token(name: str, tree: str) -> None:
    composed = Composition(target=large(name), drafter=ouroboros(name), tree=tree_of(tree))
    assert decode(composed, (7,), COUNT).tokens == oracle(family_of(name), (7,), COUNT)


def test_an_end_token_within_a_phrase_ends_the_text() -> None:
    drafter = ouroboros("llama", draft_tokens=2)

    def teach(emitted: list[int], text: list[int]) -> None:
        before = len(emitted) + 1  # of the last token that will be written
        drafter._pool.add(text[before : before + drafter.ngram])

    last = list(ends_within(drafter, native(drafter), teach))
    within = [one.was_cut and len(one.tokens) > drafter.draft_tokens for one in last]
    assert any(within), "some end lay within an accepted phrase"


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", ["llama:noisy", "gpt2:2"])
def test_a_window_larger_than_the_context_left(name: str, tree: str) -> None:
    """The rows look past the last position; guesses get worse there, the text does not."""
    prompt = tuple((7 * place + 3) % VOCAB for place in range(122))
    drafter = ouroboros(name, window=9, ngram=5, draft_tokens=12)
    composed = Composition(target=large(name), drafter=drafter, tree=tree_of(tree))
    outcome = decode(composed, prompt, COUNT)
    assert outcome.tokens == oracle(family_of(name), prompt, 7)
    assert outcome.loop.finish_reason == "length"


@pytest.mark.parametrize("capacity", [12, 19, 27])
def test_a_cache_too_small_for_the_branches(capacity: int) -> None:
    drafter = ouroboros(cache="static")
    composed = Composition(
        target=target("llama"),
        drafter=drafter,
        tree=native(drafter),
        cache=StaticCache(capacity=capacity, block=1),
    )
    outcome = decode(composed, PROMPT, COUNT)
    expected = min(COUNT, capacity + 1 - len(PROMPT))
    assert outcome.tokens == oracle("llama", PROMPT, COUNT)[:expected]


def test_without_a_match_the_draft_goes_alone() -> None:
    outcome = run(ouroboros(window=1))
    assert outcome.records[0].draft.num_rows == 1 + SIZES["draft_tokens"]


def test_padded_passes_teach_the_same() -> None:
    """Dead rows hold tokens, too, and the target says something after them."""
    pools, steps = [], []
    for buckets in ("null", "[3,17,40]"):
        words = ["target=toy", "drafter=ouroboros", "tree=native", f"runtime.buckets={buckets}"]
        engine = specframe.load(words)
        loop = engine.decoding(max_new_tokens=COUNT)
        loop.begin(TOY_PROMPT)
        while loop.finish_reason is None:
            steps.append(loop.step().tokens)
        drafter: Any = engine.components.drafter
        pools.append(drafter._pool._phrases)
    assert pools[0] == pools[1]
    assert steps[: len(steps) // 2] == steps[len(steps) // 2 :]


# At a temperature, and what is refused


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", ["toy:0.25", "llama:noisy", "gemma3:2"])
def test_one_seed_gives_the_autoregressive_text(name: str, tree: str) -> None:
    plain = Composition(target=large(name), sampling=sampling_config(0.8), seed=5)
    expected = decode(plain, prompt_of(name), COUNT).tokens
    assert expected != text_of(family_of(name), prompt_of(name), COUNT)
    drafted = replace(plain, drafter=ouroboros(name), tree=tree_of(tree))
    assert decode(drafted, prompt_of(name), COUNT).tokens == expected


def test_the_law_of_a_whole_text_is_exact() -> None:
    big = small_table()
    drafter = paired(small_table(0.3), big, window=2, ngram=3, phrases=2, draft_tokens=2)
    assert law_error(drafter, native(drafter), big) < 1e-12


def test_what_needs_a_law_is_refused() -> None:
    words = ["target=toy", "drafter=ouroboros"]
    with pytest.raises(IncompatibleComponents, match=r"ouroboros gives no law.*use accept=match"):
        specframe.load([*words, "accept=rejection", "tree=native"])
    hot = ["sampling.temperature=1", "tree=chain"]
    for how in ("iid", "wor", "coupled"):
        with pytest.raises(IncompatibleComponents, match=r"tree\.proposal=.* use "):
            specframe.load([*words, *hot, f"tree.proposal={how}"])
    with pytest.raises(IncompatibleComponents, match=r"drafter\.layers=1: toy cannot"):
        specframe.load([*words, "drafter.layers=1"])
    with pytest.raises(ConfigError, match=r"drafter\.model"):
        specframe.load([*words, "target.draft=null"])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", TREES)
def test_reads_as_often_as_the_draft_model_runs(
    tree: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One a draft pass, and the step's own; at most as many as it declares."""
    drafter = ouroboros("llama:noisy", window=4)
    composed = Composition(
        target=target("llama"),
        drafter=drafter,
        tree=tree_of(tree),
        sampling=sampling_config(temperature),
    )
    reads = HostReads()
    watch(reads, composed.target, composed.cache, monkeypatch)
    watch(reads, drafter._writer.model, drafter._writer.cache, monkeypatch)
    rows, loop = counted(drafter), composed.decoding(COUNT)
    loop.begin(PROMPT)
    while loop.finish_reason is None:
        reads.seen.clear()
        rows.clear()
        with reads.counting():
            loop.step()
        assert len(reads.seen) == 1 + len(rows) <= 1 + drafter.traits.host_reads, reads.seen
    assert drafter.traits.host_reads == drafter.draft_tokens
