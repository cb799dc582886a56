"""Lookahead against a slow account of it in plain Python, which runs whole sequences, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from specframe import load
from specframe.cache.static import StaticCache as StaticCache
from specframe.drafter.lookahead import Lookahead
from specframe.errors import IncompatibleComponents
from specframe.lookup.lookahead_window import window_pattern
from specframe.measure.meter import Meter
from specframe.measure.metrics import Metrics
from specframe.testing.defaults import component
from specframe.tree.chain import ChainTree
from specframe.tree.native import NativeTree
from specframe.types import Draft
from tests.drafter.edges import ends_within, law_error
from tests.drafter.slow_accounts import Window, likeliest, num_nodes, one_pass, whole
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    TINY,
    VOCAB,
    Composition,
    Outcome,
    assert_fresh,
    decode,
    full_logits,
    oracle,
    raw,
    sampling_config,
    small_table,
    target,
    toy,
    tree_of,
)

SIZES = {"window": 3, "ngram": 4, "guesses": 3, "pool_from_prompt": False}
COUNT = 22


def lookahead(**changes: Any) -> Lookahead:
    """A small one, with `changes`."""
    return Lookahead(**{**SIZES, **changes})


def native(drafter: Lookahead) -> NativeTree:
    """Exactly as many rows as the formula gives."""
    rows = (drafter.ngram - 1) * (drafter.window + drafter.guesses)
    return NativeTree(depth=drafter.ngram - 1, max_nodes=rows, proposal="place")


def run(drafter: Lookahead, family: str = "llama", prompt: Sequence[int] = PROMPT) -> Outcome:
    """Greedy text with the whole trie verified."""
    composed = Composition(target=target(family), drafter=drafter, tree=native(drafter))
    return decode(composed, prompt, COUNT)


# The slow account


class Slow:
    """One answer, step by step: `steps` holds the tokens, `trees` the nodes of each step's trie."""

    def __init__(
        self, family: str, prompt: Sequence[int], sizes: dict[str, Any], *, chain: bool
    ) -> None:
        def after(tokens: Sequence[int]) -> int:
            return likeliest(raw(family), tuple(tokens))[0]

        self.after, self.chain = after, chain
        self.text = [*prompt, after(prompt)]
        sizes_of_window = {"width": sizes["window"], "ngram": sizes["ngram"]}
        self.window = Window(prompt, **sizes_of_window, most=sizes["guesses"], after=after)
        if sizes["pool_from_prompt"]:
            for place in range(len(self.text) - sizes["ngram"] + 1):
                self.window.remember(self.text[place : place + sizes["ngram"]])
        self.steps: list[list[int]] = []
        self.trees: list[int] = []
        self.windows: list[int] = []

    def step(self, left: int) -> None:
        """One pass, with `left` tokens still to be emitted."""
        guesses = [one[: left - 1] for one in self.window.newest(self.text[-1])]
        if self.chain:
            guesses = [favourite(guesses)]
        emitted = one_pass(self.after, self.text, guesses, left)
        self.trees.append(num_nodes(guesses))
        self.windows.append(len(self.window.levels) if left > 1 else 0)
        if left > 1:
            self.window.look_ahead(self.text)
        self.text += emitted
        self.steps.append(emitted)


def favourite(guesses: Sequence[Sequence[int]]) -> list[int]:
    """Token by token what most guesses say, the newest of equals."""
    path: list[int] = []
    while True:
        fitting = [one for one in guesses if one[: len(path)] == path and len(one) > len(path)]
        if not fitting:
            return path
        said = [one[len(path)] for one in fitting]
        path.append(max(dict.fromkeys(said), key=said.count))


def slow(
    family: str, prompt: Sequence[int], count: int, chain: bool = False, **changes: Any
) -> Slow:
    """The account of a whole answer."""
    made = Slow(family, prompt, {**SIZES, **changes}, chain=chain)
    found: Slow = whole(made, prompt, count)
    return found


CASES = [
    {},
    {"window": 1},
    {"window": 5, "ngram": 3, "guesses": 1},
    {"window": 2, "ngram": 6, "guesses": 4},
    {"pool_from_prompt": True},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
@pytest.mark.parametrize("family", TINY)
def test_each_step_is_that_of_the_slow_account(family: str, changes: dict[str, Any]) -> None:
    expected = slow(family, PROMPT, COUNT, **changes)
    drafter = lookahead(**changes)
    outcome = run(drafter, family)
    assert [record.tokens for record in outcome.records] == expected.steps
    assert outcome.tokens == oracle(family, PROMPT, COUNT)
    for record, nodes, levels in zip(
        outcome.records, expected.trees, expected.windows, strict=True
    ):
        aux = 0 if record.draft.aux is None else len(record.draft.aux.tokens)
        assert aux == max(levels * drafter.window - 1, 0)
        assert record.draft.num_rows == 1 + nodes
        assert record.draft.num_rows + aux <= (drafter.ngram - 1) * (
            drafter.window + drafter.guesses
        )


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_chain_follows_what_most_guesses_say(family: str) -> None:
    expected = slow(family, PROMPT, COUNT, chain=True, guesses=4, window=4)
    tree = ChainTree(depth=8, max_nodes=64, proposal="place")
    drafter = lookahead(guesses=4, window=4)
    outcome = decode(Composition(target=target(family), drafter=drafter, tree=tree), PROMPT, COUNT)
    assert [record.tokens for record in outcome.records] == expected.steps


@pytest.mark.slow
def test_some_guesses_are_right() -> None:
    """Else the comparison of the steps would compare nothing."""
    accepted = [
        run(lookahead(**changes), family).num_accepted for changes in CASES for family in TINY
    ]
    assert sum(one > 0 for one in accepted) > len(accepted) // 2, accepted


@pytest.mark.parametrize("window", [1, 4])
def test_a_pass_has_as_many_rows_as_the_formula_says(window: int) -> None:
    """Guesses that share nothing, so that the trie merges none of them."""
    drafter = lookahead(window=window, ngram=5, guesses=6)
    composed = Composition(target=target("llama"), drafter=drafter, tree=native(drafter))
    loop = composed.decoding(COUNT)
    loop.begin(PROMPT)
    for levels in range(1, 4):
        assert loop.propose().aux is None or len(loop.propose().aux.tokens) == levels * window - 1
        loop.step()
    for start in range(7):
        drafter._pool.add([loop.context.tokens[-1], *range(10 * start, 10 * start + 4)])
    draft = loop.propose()
    assert draft.num_rows == 1 + 6 * 4
    assert draft.aux is not None
    rows = draft.num_rows + len(draft.aux.tokens)
    assert rows == (5 - 1) * (window + 6)
    assert drafter.traits.needs.aux_rows == len(draft.aux.tokens)


# The window


@pytest.mark.parametrize(("levels", "window"), [(1, 1), (1, 4), (2, 3), (4, 7), (3, 1)])
def test_the_pattern_token_by_token(levels: int, window: int) -> None:
    pattern = window_pattern(levels, window)
    for row, (level, column) in enumerate(places(levels, window)):
        seen = {(0, other) for other in range(column + 1)}
        seen |= {(other, column) for other in range(level + 1)}
        assert {
            place for place, yes in zip(places(levels, window), pattern[row], strict=True) if yes
        } == seen
        assert int(pattern[row].sum()) == column + 1 + level


def places(levels: int, window: int) -> list[tuple[int, int]]:
    """(level, column) in the order of the rows."""
    return [(level, column) for level in range(levels) for column in range(window)]


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("family", TINY)
def test_every_row_of_the_window_is_a_plain_continuation(family: str, cache: str) -> None:
    """What a row sees is a sequence, so its logits are those of that sequence alone."""
    drafter = lookahead()
    made = CACHE_MAKERS[cache]()
    composed = Composition(target=target(family), drafter=drafter, tree=native(drafter), cache=made)
    loop = composed.decoding(COUNT)
    loop.begin(LONG_PROMPT)
    for _ in range(4):
        loop.step()
    drafter._pool.add([loop.context.tokens[-1], 4, 5, 6])
    first, *others = [list(level) for level in drafter._ahead.levels]
    with torch.inference_mode():
        draft = loop.propose()
        fresh = made.reserve([draft.num_rows])
        draft = replace(draft, slots=fresh.slots, columns=fresh.columns)
        out = composed.target.score(draft, made)
        bare = composed.target.score(replace(draft, aux=None), made)
    assert out.aux_logits is not None
    torch.testing.assert_close(out.logits, bare.logits, rtol=0, atol=1e-9)
    for row, (level, column) in enumerate(places(3, drafter.window)[1:]):
        above = [one[column] for one in others[:level]]
        seen = [*loop.context.tokens, *first[1 : column + 1], *above]
        expected = full_logits(raw(family), seen)[-1]
        torch.testing.assert_close(out.aux_logits[row], expected, rtol=0, atol=1e-9)


def test_keys_of_the_window_are_not_kept() -> None:
    cache = CACHE_MAKERS["dynamic"]()
    drafter = lookahead()
    composed = Composition(
        target=target("llama"), drafter=drafter, tree=native(drafter), cache=cache
    )
    outcome = decode(composed, PROMPT, COUNT)
    assert outcome.num_accepted
    assert_fresh(cache, raw("llama"), outcome.loop.context.tokens)


# The pool


def test_the_pool_stays_within_its_size_and_holds_whole_ngrams() -> None:
    drafter = lookahead(window=6, guesses=2)
    run(drafter)
    held = drafter._pool._phrases
    assert {len(rest) for ngrams in held.values() for rest in ngrams} == {drafter.ngram - 1}
    assert max(map(len, held.values())) == 2


def test_the_prompt_may_fill_the_pool() -> None:
    prompt = [*PROMPT, *oracle("llama", PROMPT, 40), *PROMPT]  # its answer is in it
    expected = slow("llama", prompt, COUNT, pool_from_prompt=True)
    told = run(lookahead(pool_from_prompt=True), prompt=prompt)
    assert [record.tokens for record in told.records] == expected.steps
    every = [*range(6)] * 3  # whatever comes first has been seen
    for told_too, rows in ((False, 1), (True, 4)):
        drafter = lookahead(pool_from_prompt=told_too)
        composed = Composition(target=toy(), drafter=drafter, tree=native(drafter))
        assert decode(composed, every, 6).records[0].draft.num_rows == rows
    drafter = lookahead(ngram=3, guesses=64, pool_from_prompt=True)
    loop = Composition(target=target("llama"), drafter=drafter).decoding(4)
    text = [*prompt, *loop.begin(prompt)]
    held = {(key, *rest) for key, one in drafter._pool._phrases.items() for rest in one}
    assert held == set(zip(text, text[1:], text[2:], strict=False))


# Edges


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic", "native"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_prompt_of_one_token(family: str, tree: str) -> None:
    drafter = lookahead(window=3, ngram=3, pool_from_prompt=True)
    composed = Composition(target=target(family), drafter=drafter, tree=tree_of(tree))
    assert decode(composed, (7,), COUNT).tokens == oracle(family, (7,), COUNT)


def test_an_end_token_within_an_ngram_ends_the_text() -> None:
    drafter = lookahead(guesses=1)

    def teach(emitted: list[int], text: list[int]) -> None:
        drafter._pool.add([emitted[-1], *text[len(emitted) : len(emitted) + 3]])

    last = list(ends_within(drafter, native(drafter), teach))
    assert any(record.was_cut for record in last), "some end lay within an accepted n-gram"


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_window_larger_than_the_context_left(family: str) -> None:
    """The rows look past the last position; guesses get worse there, the text does not."""
    prompt = tuple((7 * place + 3) % VOCAB for place in range(122))
    drafter = lookahead(window=9, ngram=5)
    outcome = run(drafter, family, prompt)
    assert outcome.tokens == oracle(family, prompt, 7)
    assert outcome.loop.finish_reason == "length"


@pytest.mark.parametrize("capacity", range(12, 30, 3))
def test_a_cache_too_small_for_the_window(capacity: int) -> None:
    drafter = lookahead()
    cache = StaticCache(capacity=capacity, block=1)
    composed = Composition(
        target=target("llama"), drafter=drafter, tree=native(drafter), cache=cache
    )
    outcome = decode(composed, PROMPT, COUNT)
    expected = min(COUNT, capacity + 1 - len(PROMPT))
    assert outcome.tokens == oracle("llama", PROMPT, COUNT)[:expected]


def test_without_a_match_only_the_window_rides_along() -> None:
    outcome = run(lookahead())
    first = outcome.records[0].draft
    assert first.num_rows == 1
    assert first.aux is not None
    last = outcome.records[-1].draft
    assert last.aux is None or len(outcome.records[-1].tokens) > 1, "nothing comes after it"


def test_the_last_pass_has_no_window() -> None:
    outcome = run(lookahead(guesses=1, window=2))
    lefts = [len(PROMPT) + COUNT - record.length_before for record in outcome.records]
    for left, record in zip(lefts, outcome.records, strict=True):
        assert (record.draft.aux is None) == (left == 1)


def test_two_prompts_share_nothing() -> None:
    drafter = lookahead()
    alone = [record.tokens for record in run(lookahead(), prompt=LONG_PROMPT).records]
    run(drafter)
    assert [record.tokens for record in run(drafter, prompt=LONG_PROMPT).records] == alone


def test_too_few_rows_are_refused_with_the_way_out() -> None:
    words = ["target=toy", "drafter=lookahead", "tree=native"]
    numbers = ["drafter.window=7", "drafter.ngram=5", "drafter.guesses=7"]
    with pytest.raises(IncompatibleComponents, match=r"tree\.max_nodes=28: .* 27 auxiliary.* use "):
        load([*words, *numbers, "tree.max_nodes=28"])
    load([*words, *numbers, "tree.max_nodes=29"]).generate([1, 2, 3], max_new_tokens=12)
    for tree in ("chain", "static", "dynamic", "native"):
        engine = load(["target=toy", "drafter=lookahead", f"tree={tree}"])
        rows = engine.components.tree.max_nodes - engine.components.drafter.traits.needs.aux_rows
        assert rows >= 5, "the numbers that come with it leave room for a guess"


# At a temperature


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic", "native"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_one_seed_gives_the_autoregressive_text(family: str, tree: str) -> None:
    plain = Composition(target=target(family), sampling=sampling_config(0.8), seed=5)
    expected = decode(plain, PROMPT, COUNT).tokens
    assert expected != oracle(family, PROMPT, COUNT)
    drafted = replace(plain, drafter=lookahead(), tree=tree_of(tree))
    assert decode(drafted, PROMPT, COUNT).tokens == expected


@pytest.mark.parametrize("pool_from_prompt", [False, True])
def test_the_law_of_a_whole_text_is_exact(pool_from_prompt: bool) -> None:
    drafter = lookahead(window=2, ngram=3, guesses=2, pool_from_prompt=pool_from_prompt)
    assert law_error(drafter, native(drafter), small_table()) < 1e-12


def test_rows_of_the_window_are_counted() -> None:
    engine = load(["target=toy", "drafter=lookahead", "tree=native", "max_new_tokens=20"])
    meter = Meter(engine.components.target.device)
    meter.begin()
    rows: list[int] = []

    class Rows:
        def observe(self, record: Any) -> None:
            draft: Draft = record.draft
            rows.append(draft.num_rows + (0 if draft.aux is None else len(draft.aux.tokens)))

    engine.generate([1, 2, 3, 1], observers=[meter, Rows()])
    counted: Metrics = meter.end()
    assert counted.num_draft_rows == sum(rows)
    assert max(rows) > 12
    assert component("drafter", "lookahead").traits.needs.aux_rows == 11
