"""The suite of tests for targets, whatever they are made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import specframe
from specframe.cache.base import CACHES, CacheManager
from specframe.target.base import Target
from specframe.testing.compositions import Composition, decode
from specframe.testing.defaults import ComponentContract, component
from specframe.types import Draft

TOKENS = (1, 2, 3, 2, 4, 0, 5)
PARENTS = (-1, 0, 0, 1, 1, 2, -1)  # the last row is dead
PROMPT = (1, 2, 3, 1, 4)


def tree(target: Target) -> Draft:
    """A tree of six rows in three levels, and a dead row."""
    tokens = torch.tensor(TOKENS) % target.vocab_size
    parents = torch.tensor(PARENTS)
    rows = torch.arange(len(TOKENS))
    return Draft(
        tokens=tokens,
        parents=parents,
        alive=rows < len(TOKENS) - 1,
        depths=torch.tensor([0, 1, 1, 2, 2, 2, 0]),
        origin=rows,
        row_of=rows,
        depth=2,
        chain=False,
    )


def placed(draft: Draft, cache: CacheManager, order: list[int] | None = None) -> Draft:
    """A draft whose rows have fresh slots, in another order than the rows' if one is given."""
    fresh = cache.reserve([draft.num_rows])
    rows = torch.tensor(range(draft.num_rows) if order is None else order)
    return replace(draft, slots=fresh.slots[rows], columns=fresh.columns[rows])


@torch.inference_mode()
def logits_after(target: Target, tokens: list[int]) -> torch.Tensor:
    """[V] logits after tokens that are fed one by one."""
    held = component("cache", "dynamic")
    held.open(0, columns=64, device=torch.device("cpu"))
    for token in tokens:
        out = target.prefill([token], held)
    return out.logits[0]


def prefilled(target: Target, cache: str) -> CacheManager:
    """A cache of a kind that holds the prompt."""
    manager: CacheManager = component("cache", cache)
    with torch.inference_mode():
        manager.open(0, columns=len(PROMPT) + 64, device=torch.device("cpu"))
        target.prefill(PROMPT, manager)
    return manager


class TargetContract(ComponentContract):
    """What every target does, compared with tokens that are fed to it one by one."""

    @pytest.fixture
    def target(self, name: str) -> Target:
        """The target as a user loads it; a suite may give a smaller or more exact one."""
        return specframe.load(
            [f"target={name}", *self.keys("target"), "drafter=none"]
        ).components.target

    @pytest.fixture(params=CACHES.names())
    def cache(self, request: pytest.FixtureRequest) -> str:
        """The word of a cache."""
        word: str = request.param
        return word

    def test_prefill_of_a_whole_prompt_equals_token_by_token(
        self, target: Target, cache: str
    ) -> None:
        held = component("cache", cache)
        held.open(0, columns=64, device=torch.device("cpu"))
        with torch.inference_mode():
            out = target.prefill(PROMPT, held)
        assert out.logits.shape == (1, target.vocab_size)
        assert held.lengths[0] == held.extents[0] == len(PROMPT)
        torch.testing.assert_close(
            out.logits[0], logits_after(target, list(PROMPT)), rtol=0, atol=1e-9
        )

    def test_tree_rows_equal_their_paths(self, target: Target, cache: str) -> None:
        held = prefilled(target, cache)
        draft = tree(target)
        draft = placed(draft, held, order=[4, 1, 6, 0, 2, 5, 3])
        with torch.inference_mode():
            out = target.score(draft, held)
        assert out.logits.shape == (len(TOKENS), target.vocab_size)
        assert held.lengths[0] == len(PROMPT), "a verify pass commits nothing"
        for row in range(len(TOKENS) - 1):
            nodes, depth = torch.tensor([row]), int(draft.depths[row])
            path = [*draft.tokens[:1].tolist(), *draft.path_tokens(nodes, depth)[0].tolist()]
            expected = logits_after(target, [*PROMPT, *path])
            torch.testing.assert_close(out.logits[row], expected, rtol=0, atol=1e-9)

    def test_dead_rows_touch_nothing(self, target: Target, cache: str) -> None:
        found = []
        for token in (0, 5):
            held = prefilled(target, cache)
            draft = tree(target)
            draft.tokens[-1] = token
            with torch.inference_mode():
                out = target.score(placed(draft, held), held)
            found.append(out.logits[:-1])
        assert torch.equal(found[0], found[1])

    def test_taps_have_a_row_for_each_row(self, target: Target) -> None:
        taps = sorted(target.gives.taps)
        if not taps:
            return
        held = component("cache", "dynamic")
        held.open(0, columns=64, device=torch.device("cpu"))
        with torch.inference_mode():
            first = target.prefill(PROMPT, held, taps=taps)
            second = target.score(placed(tree(target), held), held, taps=taps)
            head = target.head(second.taps["final_postnorm"])
        assert set(first.taps) == set(second.taps) == set(taps)
        assert {len(rows) for rows in first.taps.values()} == {len(PROMPT)}
        assert {len(rows) for rows in second.taps.values()} == {len(TOKENS)}
        torch.testing.assert_close(head, second.logits, rtol=0, atol=1e-9)

    def test_declares_itself(self, target: Target) -> None:
        assert target.vocab_size > 1
        assert target.num_layers >= 1
        assert target.name
        assert target.embed(torch.tensor([0, 1])).shape[0] == 2
        assert target.gives.rollback == "truncate"
        taps = target.gives.taps
        assert not taps or taps >= {"embed", "final_postnorm"}, "all of the usual taps, or none"
        if target.tokenizer is not None:
            ids = target.tokenizer.encode_plain("abc")
            assert target.tokenizer.decode(ids) == "abc"

    def test_runs_in_the_loop(self, target: Target, cache: str) -> None:
        outcome = decode(Composition(target=target, cache=component("cache", cache)), PROMPT, 6)
        expected = list(PROMPT)
        for _ in range(6):
            expected.append(int(logits_after(target, expected).argmax()))
        assert outcome.tokens == expected[len(PROMPT) :]
