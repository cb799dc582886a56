"""The whole contract, each corner used by a drafter in the manner of the method that needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.cache.dynamic import DynamicCache
from specframe.cache.static import StaticCache
from specframe.drafter.base import Drafter
from specframe.testing.targets import placed
from specframe.tree.dynamic import DynamicTree
from specframe.types import Budget, Frontier, Proposal
from tests.methods import EarlyExit, Lookahead, Recycling, Router
from tests.small_models import (
    CACHE_MAKERS,
    PROMPT,
    TINY,
    VOCAB,
    Composition,
    Outcome,
    Scripted,
    assert_fresh,
    decode,
    drafter_of,
    oracle,
    raw,
    target,
    toy,
    tree_of,
)

COUNT = 14


def run(drafter: Drafter, tree: str = "chain", family: str = "llama", **more: Any) -> Outcome:
    """Greedy text of a family's model with this drafter."""
    return decode(
        Composition(target=target(family), drafter=drafter, tree=tree_of(tree), **more), count=COUNT
    )


def expected(family: str = "llama") -> list[int]:
    """The same without draft and cache."""
    return oracle(family, PROMPT, COUNT)


# Auxiliary rows and what is read back


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("tree", ["chain", "static", "dynamic", "native"])
def test_auxiliary_rows(tree: str, cache: str) -> None:
    drafter = Lookahead(window=5, vocab_size=VOCAB)
    made = CACHE_MAKERS[cache]()
    outcome = run(drafter, tree, cache=made)
    assert outcome.tokens == expected()
    assert all(len(record.readback) == 5 for record in outcome.records)
    assert all(record.out.aux_logits is not None for record in outcome.records)
    assert sum(len(found) for found in drafter.pool.values()) == 5 * len(outcome.records)
    assert_fresh(made, raw("llama"), outcome.loop.context.tokens)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_tree_rows_never_see_auxiliary_rows(family: str) -> None:
    """The same draft is scored with and without them; a leak would change its logits."""
    drafter = Lookahead(window=4, vocab_size=VOCAB)
    composition = Composition(target=target(family), drafter=drafter, tree=tree_of("native"))
    loop = composition.decoding(COUNT)
    loop.begin(PROMPT)
    drafter.pool[loop.context.tokens[-1]] = [3, 9]
    draft = loop.propose()
    assert draft.aux is not None
    assert draft.num_rows > 2
    with torch.inference_mode():
        cache = composition.cache
        bare = composition.target.score(placed(replace(draft, aux=None), cache), cache)
        both = composition.target.score(placed(draft, cache), cache)
        assert both.aux_logits is not None
        assert both.aux_logits.shape == (4, VOCAB)
        torch.testing.assert_close(both.logits, bare.logits, rtol=0, atol=1e-9)
        blind = replace(draft.aux, sees=draft.aux.sees.clone())
        blind.sees[:, 0] = False
        other = composition.target.score(placed(replace(draft, aux=blind), cache), cache)
    assert not torch.allclose(other.aux_logits, both.aux_logits), "what they see is what was said"


def test_near_the_end_auxiliary_rows_shrink_with_the_draft() -> None:
    cache = StaticCache(capacity=len(PROMPT) + COUNT, block=1)
    outcome = run(Lookahead(window=5, vocab_size=VOCAB), cache=cache)
    assert outcome.tokens == expected()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_auxiliary_rows_may_look_past_the_last_position(family: str) -> None:
    """A learned position table ends with the context; a guess beyond it must not end the run."""
    prompt = tuple((7 * place + 3) % VOCAB for place in range(120))
    drafter = Lookahead(window=5, vocab_size=VOCAB)
    outcome = decode(Composition(target=target(family), drafter=drafter), prompt, 8)
    assert outcome.tokens == oracle(family, prompt, 8)


# Records of all rows, and several sources


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
def test_records_of_all_rows(tree: str) -> None:
    drafter = Recycling(vocab_size=6, width=3)
    composition = Composition(target=toy(), drafter=drafter, tree=tree_of(tree))
    outcome = decode(composition, (1, 2, 3), 60)
    assert outcome.tokens == decode(Composition(target=toy()), (1, 2, 3), 60).tokens
    assert outcome.num_accepted > 10
    assert run(Recycling(vocab_size=VOCAB, width=4), tree).tokens == expected()


@pytest.mark.parametrize("rule", [Match(), Rejection()])
@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
def test_several_sources_a_node(tree: str, rule: AcceptRule) -> None:
    sources = [
        drafter_of("noisy", "llama"),
        drafter_of("ngram", "llama"),
        drafter_of("bad", "llama"),
    ]
    outcome = run(Router(*sources), tree, accept=rule)
    assert outcome.tokens == expected()
    if tree == "dynamic":
        assert any(record.num_accepted for record in outcome.records)


# Partial layers


class Told(EarlyExit):
    """Its second choice is always right, so that paths other than the first are accepted."""

    def __init__(self, *, text: Sequence[int], **more: Any) -> None:
        super().__init__(**more)
        self.text = text

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        (proposal,) = super().expand(frontier)
        place = len(self.context) + frontier.depth
        if place >= len(self.text):
            return [proposal]
        assert proposal.logits is not None
        logits = proposal.logits.clone()
        logits[:, self.text[place]] = -torch.inf
        logits[:, self.text[place]] = logits.topk(2).values.mean(-1)
        return [replace(proposal, logits=logits)]


@pytest.mark.parametrize("family", TINY)
@pytest.mark.parametrize("tree", ["static", "dynamic"])
def test_early_exit(tree: str, family: str) -> None:
    cache, text = DynamicCache(), [*PROMPT, *expected(family)]
    outcome = run(Told(target=target(family), layer=2, text=text), tree, family, cache=cache)
    assert outcome.tokens == expected(family)
    assert outcome.num_accepted >= 5
    assert_fresh(cache, raw(family), outcome.loop.context.tokens)
    drafts = [record.draft for record in outcome.records if record.draft.num_rows > 1]
    for draft in drafts:
        assert draft.resume is not None
        assert draft.slots is not None
    assert any((draft.slots.diff() < 0).any() for draft in drafts)  # type: ignore[union-attr]


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("tree", ["chain", "native", "static"])
def test_early_exit_on_every_cache(tree: str, cache: str) -> None:
    """tree=native expands nothing, so all rows start in `aux`."""

    class Both(EarlyExit):
        def native(self, budget: Budget) -> Sequence[Sequence[int]]:
            place = len(self.context)
            return [[1, 2], [*PROMPT, *expected()][place : place + budget.depth]]

    made = CACHE_MAKERS[cache]()
    outcome = run(Both(target=target("llama"), layer=1), tree, cache=made)
    assert outcome.tokens == expected()
    assert_fresh(made, raw("llama"), outcome.loop.context.tokens)
    assert tree != "native" or outcome.num_accepted >= 8


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
def test_early_exit_shrinks_near_the_end_of_the_cache(tree: str) -> None:
    """Nodes that were expanded and then left out of the draft have taken slots, too."""
    cache = StaticCache(capacity=len(PROMPT) + COUNT, block=1)
    outcome = run(EarlyExit(target=target("llama"), layer=1), tree, cache=cache)
    assert outcome.tokens == expected()


# Dead rows


def test_dead_rows_are_never_walked_nor_committed() -> None:
    text = [*PROMPT, *expected()]

    class Doubtful(Scripted):
        """Its first candidate is missing, its third repeats the second."""

        def expand(self, frontier: Any) -> Any:
            for proposal in super().expand(frontier):
                found = proposal.candidates
                gone = torch.full_like(found, -1)
                yield replace(proposal, candidates=torch.cat([gone, found, found], dim=1))

    class Listed(Doubtful):
        def expand(self, frontier: Any) -> Any:
            return list(super().expand(frontier))

    cache = DynamicCache()
    tree = DynamicTree(depth=3, top_k=3, max_nodes=12, proposal="place")
    composition = Composition(target=target("llama"), drafter=Listed(text), tree=tree, cache=cache)
    outcome = decode(composition, count=COUNT)
    assert outcome.tokens == expected()
    assert outcome.num_accepted >= COUNT - 1 - len(outcome.records)
    assert any(not record.draft.alive.all() for record in outcome.records)
    for record in outcome.records:
        assert record.draft.alive[record.path].all()
    assert_fresh(cache, raw("llama"), outcome.loop.context.tokens)
