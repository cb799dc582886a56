"""drafter=layer_skip: the drafts of a slow reference, scratch that goes, sets that are found."""

from __future__ import annotations

import copy
import itertools
import random
from statistics import mean
from typing import Any

import pytest
import torch

from specframe.cache.static import StaticCache as StaticCache
from specframe.drafter.layer_skip import LayerSkip
from specframe.drafter.layer_skip.search import SkipSearch, evenly, inner_parts
from specframe.errors import ConfigError
from specframe.target.base import Target
from specframe.target.hf import HF
from tests.drafter.layer_contract import Method, PartialLayersContract
from tests.drafter.slow_layers import (
    TREES,
    Slow,
    blocks_of,
    composed,
    count_blocks,
    parts_of,
    shape,
    without,
)
from tests.small_models import (
    CACHE_MAKERS,
    LAYERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    TINY,
    Composition,
    assert_fresh,
    decode,
    model,
    oracle,
    raw,
    sampling_config,
    target,
    tree_of,
)
from tests.test_syncs import check
from tests.turns import in_turn

COUNT = 16
SKIP = ["attention:1", "mlp:2"]
SEARCH: dict[str, Any] = {"tries": 50, "every": 1, "window": 5, "bayes_every": 3}
NO_SEARCH: dict[str, Any] = {"tries": 0, "every": 1, "window": 32, "bayes_every": 25}


def skipping(
    made: Target | None = None, skip: list[str] | None = SKIP, **changes: Any
) -> LayerSkip:
    """The drafter composed by hand, without a search unless told."""
    given = {"ratio": 0.45, "keep": False, "seed": 0, **NO_SEARCH, **changes}
    return LayerSkip(skip=skip, target=made or target("llama"), **given)


class TestLayerSkip(PartialLayersContract):
    """What every drafter on the target's layers does."""

    @pytest.fixture
    def method(self) -> Method:
        return Method(
            word="layer_skip",
            drafter=lambda family: skipping(target(family)),
            reference=lambda family: without(family, frozenset(SKIP)),
            perfect=lambda family: skipping(target(family), []),
            busy=lambda family: skipping(target(family), **SEARCH),
        )


def test_the_reference_accepts_something() -> None:
    for family in TINY:
        slow = Slow(without(family, frozenset(SKIP)))
        assert decode(composed("dynamic", family=family, drafter=slow), LONG_PROMPT).num_accepted


@pytest.mark.parametrize("search", [NO_SEARCH, {**SEARCH, "window": 7}])
@pytest.mark.parametrize("tree", TREES)
def test_what_is_run_and_where(
    tree: str, search: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = copy.deepcopy(raw("llama"))
    calls = count_blocks(bare)
    made = HF.of(bare, runtime=RUNTIME)
    drafter = skipping(made, **search)
    cache = CACHE_MAKERS["dynamic"]()
    composition = Composition(target=made, drafter=drafter, tree=tree_of(tree), cache=cache)
    loop = composition.decoding(40)
    loop.begin(PROMPT)
    for step in range(9):
        for seen in calls.values():
            seen.clear()
        length, emitted = cache.lengths[0], len(loop.context) - len(PROMPT)
        tried, skip = step and emitted >= search["window"], drafter.skip
        record = loop.step()
        # The scratch is gone: the verify pass writes from the committed text on, all layers.
        assert record.draft.in_order
        assert record.draft.slots is not None
        assert record.draft.slots[0] == length
        for name, seen in calls.items():
            widths = [width for width in seen if width != search["window"] or not tried]
            assert seen[-1] == record.draft.num_rows
            assert (len(widths) == 1) == (name in skip), "four levels and the verify pass, or it"
    assert_fresh(cache, raw("llama"), loop.context.tokens)


# The search


def test_sets_to_start_with() -> None:
    assert inner_parts(3) == ["attention:1", "mlp:1"]
    assert evenly(3, 0.45) == {"attention:1", "mlp:1"}
    assert evenly(30, 0.0) == evenly(2, 0.5) == frozenset()
    half = evenly(30, 0.45)
    assert len(half) == 2 * 13
    assert evenly(30, 1.0) == set(inner_parts(30))
    blocks = sorted({int(name.split(":")[1]) for name in half})
    assert blocks[0] >= 1
    assert blocks[-1] <= 28
    assert {b - a for a, b in itertools.pairwise(blocks)} == {2, 3}


def searched(seed: int, bayes_every: int, tries: int = 60) -> SkipSearch:
    """A search where each part has a price; a set scores what it leaves of the whole."""
    parts, prices = inner_parts(16), random.Random(1000 + seed)
    price = {part: prices.random() ** 3 for part in parts}
    search = SkipSearch(
        parts=parts, start=evenly(16, 0.45), tries=tries, bayes_every=bayes_every, seed=seed
    )
    sizes, asked = set(), 0
    while (one := search.next()) is not None:
        search.tell(one, 1 - sum(price[part] for part in one) / sum(price.values()))
        sizes.add(len(one))
        asked += 1
        assert one <= set(parts)
    assert sizes == {len(evenly(16, 0.45))}
    assert asked == tries
    return search


def test_a_search_is_bounded_and_the_same_for_a_seed() -> None:
    for every in (0, 2):
        one, same, other = searched(3, every), searched(3, every), searched(4, every)
        assert one._seen == same._seen
        assert one._seen != other._seen
        assert one.best_score == max(score for _, score in one._seen)
        assert one.best_score > one._seen[0][1], "no better than the set it started with"


def test_bayesian_tries_learn_from_scores() -> None:
    blind = mean(searched(seed, 0).best_score for seed in range(8))
    learned = mean(searched(seed, 2).best_score for seed in range(8))
    assert learned > blind + 0.02


def test_a_search_ends_with_a_set_that_matches_everything() -> None:
    search = SkipSearch(parts=inner_parts(9), start=evenly(9, 0.5), tries=9, bayes_every=0, seed=0)
    one = search.next()
    assert one == evenly(9, 0.5)
    search.tell(one, 1.0)
    assert search.next() is None
    nothing = SkipSearch(parts=[], start=frozenset(), tries=9, bayes_every=0, seed=0)
    assert nothing.next() is None


@pytest.mark.parametrize("family", TINY)
def test_a_score_is_the_share_of_matching_tokens(family: str) -> None:
    """Against one pass without a cache in which the window's rows lack the sub-layers."""
    drafter = skipping(target(family), **SEARCH)
    composition = composed("chain", family=family, drafter=drafter, cache=CACHE_MAKERS["static"]())
    loop = composition.decoding(40)
    loop.begin(LONG_PROMPT)
    while len(drafter._search._seen) < 3:
        text = list(loop.context.tokens)
        count = len(drafter._search._seen)
        loop.step()
        if len(drafter._search._seen) == count:
            continue
        tried, score = drafter._search._seen[-1]
        logits, size = without(family, tried), SEARCH["window"]
        start = len(text) - 1 - size
        hits = [
            int(logits([text[: place + 1]], start).argmax()) == text[place + 1]
            for place in range(start, len(text) - 1)
        ]
        assert score == sum(hits) / size


def useless(*names: str) -> Any:
    """A Llama of five blocks in which these sub-layers add nothing."""
    made = model("llama", num_hidden_layers=5)
    with torch.no_grad():
        for name in names:
            kind, block = name.split(":")
            part = parts_of(blocks_of(made)[int(block)])[kind]
            (part.o_proj if kind == "attention" else part.down_proj).weight.zero_()
    return made


@pytest.mark.parametrize(
    ("tree", "temperature"), in_turn([(tree,) for tree in TREES], (0.0, 0.7), every=2)
)
def test_what_adds_nothing_is_found_and_left_out(tree: str, temperature: float) -> None:
    names = ("attention:2", "mlp:3")
    made = HF.of(useless(*names), runtime=RUNTIME)
    start = ["attention:1", "mlp:1"]
    given = {"target": made, "sampling": sampling_config(temperature), "tree": tree_of(tree)}
    plain = decode(Composition(**given), PROMPT, 90)
    # In a shorter window others are right by chance, too.
    drafter = skipping(made, start, **{**SEARCH, "window": 12})
    outcome = decode(Composition(drafter=drafter, **given), PROMPT, 90)
    assert outcome.tokens == plain.tokens
    assert len(drafter._search._seen) <= SEARCH["tries"]
    if temperature == 0:
        assert drafter.skip == set(names)
        held = decode(Composition(drafter=skipping(made, start), **given), PROMPT, 90)
        assert outcome.num_accepted > held.num_accepted + 10


@pytest.mark.slow
def test_a_text_leaves_its_set_to_the_next_only_on_request() -> None:
    made = HF.of(useless("attention:2", "mlp:3"), runtime=RUNTIME)
    start = ["attention:1", "mlp:1"]
    runs = {}
    for keep in (False, True):
        drafter = skipping(made, start, keep=keep, **SEARCH)
        composition = Composition(target=made, drafter=drafter)
        runs[keep] = [decode(composition, prompt, 60) for prompt in (PROMPT, LONG_PROMPT, PROMPT)]
        assert len(drafter._search._seen) <= SEARCH["tries"]
    assert shape(runs[False][0]) == shape(runs[False][2]) == shape(runs[True][0])
    assert runs[True][2].tokens == runs[True][0].tokens
    assert runs[True][2].num_accepted > runs[True][0].num_accepted
    fresh = skipping(made, start, **SEARCH)
    assert shape(decode(Composition(target=made, drafter=fresh), LONG_PROMPT, 60)) == shape(
        runs[False][1]
    )


@pytest.mark.parametrize("window", [2, 9, 64])
@pytest.mark.parametrize("tree", TREES)
def test_near_the_end_of_the_cache(tree: str, window: int) -> None:
    """A window that has no room any more, or never has, is no try."""
    cache = StaticCache(capacity=len(PROMPT) + COUNT, block=1)
    drafter = skipping(**{**SEARCH, "window": window})
    outcome = decode(composed(tree, drafter=drafter, cache=cache), count=COUNT)
    assert outcome.tokens == oracle("llama", PROMPT, COUNT)
    assert bool(drafter._search._seen) == (window < 9)


@pytest.mark.parametrize("search", [NO_SEARCH, {**SEARCH, "window": 2, "bayes_every": 1}])
@pytest.mark.parametrize("tree", TREES)
def test_one_read_a_step(
    tree: str, search: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score travels with the verdict, and the search is the host's own."""
    assert LayerSkip.traits.host_reads == 0
    drafter = skipping(**search)
    hot = sampling_config(0.8, top_p=0.9)
    check(composed(tree, drafter=drafter, sampling=hot), PROMPT, monkeypatch)
    assert bool(drafter._search._seen) == (search is not NO_SEARCH)


@pytest.mark.parametrize("name", ["attention:3", "mlp:-1", "block:1", "mlp", "mlp:1 "])
def test_parts_that_are_not_there_are_named(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"drafter\.skip: '.*' is no sub-layer of Llama.* 0 \.\. 2"
    ):
        skipping(skip=["mlp:1", name])
    assert LAYERS == 3


def test_scratch_beside_that_of_another_source_stays_apart() -> None:
    """Two that draft with the target's own layers, under one node."""
    from tests.methods import Router

    class Both(Router):
        traits = LayerSkip.traits

        def aux(self, draft: Any, budget: Any) -> Any:
            for one in self.sources:
                draft = one.aux(draft, budget)
            return draft

    from specframe.drafter.early_exit import EarlyExit

    for order in (1, -1):
        sources = [skipping(), EarlyExit(layer=2, target=target("llama")), skipping(skip=["mlp:0"])]
        cache = CACHE_MAKERS["dynamic"]()
        drafter = Both(*sources[::order])
        outcome = decode(composed("dynamic", drafter=drafter, cache=cache), count=COUNT)
        assert outcome.tokens == oracle("llama", PROMPT, COUNT)
        assert_fresh(cache, raw("llama"), outcome.loop.context.tokens)
