"""What every target promises, whatever it is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import specframe
from specframe.target.base import TARGETS, Target
from specframe.types import Draft
from tests.small_models import (
    CACHE_MAKERS,
    CPU,
    Composition,
    decode,
    prefilled,
    target,
    toy,
)

TOKENS = (1, 2, 3, 2, 4, 0, 5)
PARENTS = (-1, 0, 0, 1, 1, 2, -1)  # the last row is dead
PROMPT = (1, 2, 3, 1, 4)


def make(name: str) -> Target:
    """A small target of each word; one that no test knows is loaded as a user would."""
    if name == "hf":
        return target("llama")
    if name == "toy":
        return toy()
    if name == "random":
        return specframe.load(
            ["target=random", "target.dtype=float64", "drafter=none"]
        ).parts.target
    return specframe.load([f"target={name}", "drafter=none"]).parts.target


def tree(made: Target) -> Draft:
    tokens = torch.tensor(TOKENS) % made.vocab_size
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


@pytest.fixture(params=TARGETS.names())
def made(request: pytest.FixtureRequest) -> Target:
    return make(request.param)


@pytest.fixture(params=CACHE_MAKERS)
def cache(request: pytest.FixtureRequest) -> str:
    return request.param


@torch.inference_mode()
def logits_after(made: Target, tokens: list[int]) -> torch.Tensor:
    """[V] logits after tokens that are fed one by one."""
    held = CACHE_MAKERS["dynamic"]()
    held.open(0, columns=64, device=CPU)
    for token in tokens:
        out = made.prefill([token], held)
    return out.logits[0]


def test_prefill_of_a_whole_prompt_equals_token_by_token(made: Target, cache: str) -> None:
    held = CACHE_MAKERS[cache]()
    held.open(0, columns=64, device=CPU)
    with torch.inference_mode():
        out = made.prefill(PROMPT, held)
    assert out.logits.shape == (1, made.vocab_size)
    assert held.lengths[0] == held.extents[0] == len(PROMPT)
    torch.testing.assert_close(out.logits[0], logits_after(made, list(PROMPT)), rtol=0, atol=1e-9)


def test_tree_rows_equal_their_paths(made: Target, cache: str) -> None:
    held = prefilled(made, PROMPT, cache)
    draft = tree(made)
    slots = held.reserve(len(TOKENS))[torch.tensor([4, 1, 6, 0, 2, 5, 3])]
    with torch.inference_mode():
        out = made.score(replace(draft, slots=slots), held)
    assert out.logits.shape == (len(TOKENS), made.vocab_size)
    assert held.lengths[0] == len(PROMPT), "a verify pass commits nothing"
    for row in range(len(TOKENS) - 1):
        nodes, depth = torch.tensor([row]), int(draft.depths[row])
        path = [*draft.tokens[:1].tolist(), *draft.path_tokens(nodes, depth)[0].tolist()]
        expected = logits_after(made, [*PROMPT, *path])
        torch.testing.assert_close(out.logits[row], expected, rtol=0, atol=1e-9)


def test_dead_rows_touch_nothing(made: Target, cache: str) -> None:
    found = []
    for token in (0, 5):
        held = prefilled(made, PROMPT, cache)
        draft = tree(made)
        draft.tokens[-1] = token
        with torch.inference_mode():
            out = made.score(replace(draft, slots=held.reserve(len(TOKENS))), held)
        found.append(out.logits[:-1])
    assert torch.equal(found[0], found[1])


def test_taps_have_a_row_for_each_row(made: Target) -> None:
    taps = sorted(made.gives.taps)
    held = CACHE_MAKERS["dynamic"]()
    held.open(0, columns=64, device=CPU)
    with torch.inference_mode():
        first = made.prefill(PROMPT, held, taps=taps)
        second = made.score(replace(tree(made), slots=held.reserve(len(TOKENS))), held, taps=taps)
        head = made.head(second.taps["final_postnorm"])
    assert set(first.taps) == set(second.taps) == set(taps)
    assert {len(rows) for rows in first.taps.values()} == {len(PROMPT)}
    assert {len(rows) for rows in second.taps.values()} == {len(TOKENS)}
    torch.testing.assert_close(head, second.logits, rtol=0, atol=1e-9)


def test_declares_itself(made: Target) -> None:
    assert made.vocab_size > 1
    assert made.num_layers >= 1
    assert made.name
    assert made.embed(torch.tensor([0, 1])).shape[0] == 2
    assert made.gives.rollback == "truncate"
    assert set(made.gives.taps) >= {"embed", "final_postnorm"}
    if made.tokenizer is not None:
        ids = made.tokenizer.encode_plain("abc")
        assert made.tokenizer.decode(ids) == "abc"


def test_runs_in_the_loop(made: Target, cache: str) -> None:
    outcome = decode(Composition(target=made, cache=CACHE_MAKERS[cache]()), PROMPT, 6)
    expected = list(PROMPT)
    for _ in range(6):
        expected.append(int(logits_after(made, expected).argmax()))
    assert outcome.tokens == expected[len(PROMPT) :]
