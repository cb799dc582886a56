"""drafter=early_exit: the text and the drafts of a slow reference, keys once, layers once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.buffers.tensor_passes import BufferPass
from specframe.cache.base import CacheManager, Opened
from specframe.cache.static import StaticCache as StaticCache
from specframe.drafter.early_exit import EarlyExit
from specframe.drafting.builder import TreeBuilder
from specframe.errors import ConfigError
from specframe.runtime.eager import Eager
from specframe.target.hf import HF
from specframe.tree.base import Source, TreePolicy
from specframe.tree.dynamic import DynamicTree
from specframe.types import Budget, Frontier, Proposal, Rows
from tests.drafter.layer_contract import Method, PartialLayersContract
from tests.drafter.slow_layers import (
    TREES,
    Slow,
    composed,
    count_blocks,
    first_layers,
    shape,
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
    stop_config,
    target,
    tree_of,
)
from tests.test_syncs import check

COUNT = 16


def early(layer: int | None, family: str = "llama") -> EarlyExit:
    return EarlyExit(layer=layer, target=target(family))


class TestEarlyExit(PartialLayersContract):
    """What every drafter on the target's layers does."""

    @pytest.fixture
    def method(self) -> Method:
        def two(family: str) -> EarlyExit:
            return early(2, family)

        return Method(
            word="early_exit",
            drafter=two,
            reference=lambda family: first_layers(family, 2),
            perfect=lambda family: early(LAYERS, family),
            busy=two,
            # Placed children are seldom what a flat law samples.
            is_right=lambda how, temperature: how != "place" or temperature == 0,
        )


class Spy:
    """Every pass of a target: layers, rows; and the slots that each layer's keys were put in."""

    def __init__(self, made: HF, cache: CacheManager, patch: pytest.MonkeyPatch) -> None:
        self.passes: list[tuple[tuple[int, int], int]] = []
        self.written: list[tuple[int, int]] = []
        forward, opened, init = made.forward, cache.opened, BufferPass.__init__

        def passed(rows: Any, *args: Any, **kwargs: Any) -> Any:
            layers = kwargs.get("layers") or (0, made.num_layers)
            self.passes.append((layers, rows.positions.shape[0]))
            return forward(rows, *args, **kwargs)

        def opening(rows: Rows) -> Opened:
            return self._noting(opened(rows), rows.slots)

        def over_buffers(one: BufferPass, *, slots: Tensor, **fields: Any) -> None:
            init(one, slots=slots, **fields)
            self._noting(one, slots)

        patch.setattr(made, "forward", passed)
        patch.setattr(cache, "opened", opening)
        patch.setattr(BufferPass, "__init__", over_buffers)

    def _noting(self, opened: Opened, slots: Tensor) -> Opened:
        """The pass, which notes the slots that each layer's keys are put in."""
        dense = opened.dense

        def noted(layer: int, keys: Tensor, values: Tensor) -> Any:
            self.written += [(layer, slot) for slot in slots.tolist()]
            return dense(layer, keys, values)

        opened.dense = noted  # type: ignore[method-assign]
        return opened

    def clear(self) -> None:
        self.passes.clear()
        self.written.clear()


@pytest.mark.parametrize("cache_name", CACHE_MAKERS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_each_layer_of_a_row_is_run_once(
    layer: int, tree: str, cache_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = copy.deepcopy(raw("llama"))
    calls = count_blocks(bare)
    made = HF.of(bare, runtime=RUNTIME)
    cache = CACHE_MAKERS[cache_name]()
    spy = Spy(made, cache, monkeypatch)
    drafter = EarlyExit(layer=layer, target=made)
    loop = Composition(target=made, drafter=drafter, tree=tree_of(tree), cache=cache).decoding(40)
    loop.begin(PROMPT)
    unordered = False
    for _ in range(4):
        spy.clear()
        for seen in calls.values():
            seen.clear()
        draft = loop.step().draft
        lower, (upper, width) = spy.passes[:-1], spy.passes[-1]
        assert (upper, width) == ((layer, LAYERS), draft.num_rows)
        # Four levels are expanded, then the rows that were not are completed.
        assert [layers for layers, _ in lower] == [(0, layer)] * 5
        for name, seen in calls.items():
            below = int(name.split(":")[1]) < layer
            assert seen == ([rows for _, rows in lower] if below else [draft.num_rows])
        assert len(set(spy.written)) == len(spy.written), "a key was written twice"
        assert draft.slots is not None
        for slot in draft.slots.tolist():
            assert [spy.written.count((block, slot)) for block in range(LAYERS)] == [1] * LAYERS
        if tree == "chain":
            assert [rows for _, rows in lower] == [1] * 5
            assert draft.in_order
        unordered |= bool((draft.slots.diff() < 0).any())
    assert unordered == (tree != "chain"), "leaves and re-ranked rows lie in another order"


def test_a_chain_is_committed_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CACHE_MAKERS["dynamic"]()
    moves: list[bool] = []
    commit = cache.commit

    def noted(slots: Tensor, counts: Sequence[int], *, moved: Sequence[bool]) -> None:
        moves.extend(moved)
        commit(slots, counts, moved=moved)

    monkeypatch.setattr(cache, "commit", noted)
    outcome = decode(composed("chain", drafter=early(2), cache=cache), count=COUNT)
    assert outcome.num_accepted
    assert not any(moves)
    assert_fresh(cache, raw("llama"), outcome.loop.context.tokens)


class Patchy(EarlyExit):
    """Knows the text, and offers it at the second place of three, the first being missing."""

    text: Sequence[int] = ()

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        (proposal,) = super().expand(frontier)
        assert proposal.logits is not None
        place = len(self.context) + frontier.depth
        truth = self.text[place] if place < len(self.text) else 0
        token = torch.full((len(frontier), 1), truth)
        gone = torch.full_like(token, -1)
        likely = proposal.logits.topk(2).indices
        return [replace(proposal, logits=None, candidates=torch.cat([gone, token, likely], dim=1))]

    def begin(self, context: Any, out: Any) -> None:
        super().begin(context, out)
        self.context = context


@pytest.mark.parametrize("buckets", [None, [3, 8, 16, 64]])
@pytest.mark.parametrize("family", TINY)
def test_dead_rows_and_paths_other_than_the_first(family: str, buckets: list[int] | None) -> None:
    """Missing, repeated and padded nodes among those that are expanded, pruned and completed."""
    for tree in (
        DynamicTree(depth=3, top_k=4, max_nodes=30, proposal="place"),
        tree_of("static"),
    ):
        cache, drafter = CACHE_MAKERS["dynamic"](), Patchy(layer=2, target=target(family))
        drafter.text = [*LONG_PROMPT, *oracle(family, LONG_PROMPT, COUNT)]
        made = Composition(
            target=target(family),
            drafter=drafter,
            tree=tree,
            cache=cache,
            runtime=Eager(buckets=buckets),
        )
        outcome = decode(made, LONG_PROMPT, COUNT)
        assert outcome.tokens == oracle(family, LONG_PROMPT, COUNT)
        assert_fresh(cache, raw(family), outcome.loop.context.tokens)
        assert outcome.num_accepted >= 9
        assert any(not record.draft.alive.all() for record in outcome.records)
        assert any(
            record.path and record.path != [*range(1, len(record.path) + 1)]
            for record in outcome.records
        )


class Piecewise(TreePolicy):
    """Two children each, every level expanded one node at a time."""

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        level = [builder.root]
        for _ in range(min(self.depth, budget.depth)):
            grown = []
            for frontier in level:
                (proposal,) = source.expand(frontier)
                children = builder.extend(frontier, proposal, 2)
                grown += [children.select(torch.tensor([place])) for place in range(2)]
            level = grown


class Twice(Piecewise):
    """Asks for the root twice."""

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        if budget.depth:
            source.expand(builder.root)
            super().grow(builder, source, budget)


@pytest.mark.parametrize("kind", [Piecewise, Twice])
def test_a_level_in_several_calls(kind: type[TreePolicy]) -> None:
    policy = kind(depth=2, max_nodes=8, proposal="place")
    given = {"target": target("llama"), "tree": policy}
    expected = decode(Composition(drafter=Slow(first_layers("llama", 2)), **given), count=COUNT)
    outcome = decode(Composition(drafter=early(2), **given), count=COUNT)
    assert shape(outcome) == shape(expected)
    assert outcome.tokens == oracle("llama", PROMPT, COUNT)


class Orphans(TreePolicy):
    """Expands children of a node that it never expanded."""

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        if budget.depth < 3:
            return
        (proposal,) = source.expand(builder.root)
        children = builder.extend(builder.root, proposal, 2)
        source.expand(children.select(torch.tensor([0])))
        grand = builder.place(children.select(torch.tensor([1])), torch.tensor([[3]]))
        builder.extend(grand, source.expand(grand)[0], 1)


def test_a_row_that_was_never_run_is_an_error_and_no_wrong_text() -> None:
    policy = Orphans(depth=3, max_nodes=8, proposal="place")
    with pytest.raises(ConfigError, match="not finite"):
        decode(Composition(target=target("llama"), drafter=early(2), tree=policy), count=COUNT)


@pytest.mark.parametrize("tree", TREES)
def test_near_the_end_of_the_cache(tree: str) -> None:
    cache = StaticCache(capacity=len(PROMPT) + COUNT, block=1)
    outcome = decode(composed(tree, drafter=early(1), cache=cache), count=COUNT)
    assert outcome.tokens == oracle("llama", PROMPT, COUNT)


def test_near_the_end_of_the_context_and_at_an_end_token() -> None:
    small = HF.of(model("llama", max_position_embeddings=24), runtime=RUNTIME)
    plain = decode(Composition(target=small), PROMPT, 90)
    assert len(plain.tokens) < 24
    for tree in TREES:
        drafter = EarlyExit(layer=2, target=small)
        outcome = decode(Composition(target=small, drafter=drafter, tree=tree_of(tree)), PROMPT, 90)
        assert outcome.tokens == plain.tokens
    ended = stop_config(eos=[plain.tokens[7]])
    expected = decode(Composition(target=small, stop=ended), PROMPT, 18).tokens
    drafter = EarlyExit(layer=LAYERS, target=small)
    made = Composition(target=small, drafter=drafter, stop=ended)
    assert decode(made, PROMPT, 18).tokens == expected
    assert expected == plain.tokens[: plain.tokens.index(plain.tokens[7]) + 1]


@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral"])
@pytest.mark.parametrize("tree", TREES)
def test_one_read_a_step(tree: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EarlyExit.traits.host_reads == 0
    for how in ("place", "coupled"):
        hot = sampling_config(0.8, top_p=0.9)
        made = composed(tree, how, family, drafter=early(2, family), sampling=hot)
        check(made, PROMPT, monkeypatch)


def test_path_dependent_processors() -> None:
    sampling = sampling_config(0.8, repetition_penalty=1.3)
    for tree in TREES:
        outcome = decode(composed(tree, drafter=early(2), sampling=sampling))
        assert outcome.tokens == decode(composed("chain", sampling=sampling)).tokens


def test_null_is_a_quarter_and_too_many_are_refused() -> None:
    assert early(None).layer == 1
    deep = HF.of(model("llama", num_hidden_layers=30), runtime=RUNTIME)
    assert EarlyExit(layer=None, target=deep).layer == 8
    with pytest.raises(ConfigError, match=r"drafter\.layer=4: Llama.* has 3 blocks; use 1 \.\. 3"):
        early(4)
