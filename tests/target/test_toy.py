"""The tabulated target: its law is known exactly."""

from __future__ import annotations

import math

import pytest
import torch

from specframe.target.toy import Letters
from tests.small_models import CACHE_MAKERS, Composition, decode, prefilled, toy


def test_law_depends_on_two_tokens() -> None:
    made = toy()
    law = made.law([4, 1, 2])
    assert torch.equal(law, made.law([0, 1, 2]))
    assert not torch.equal(law, made.law([4, 0, 2]))
    assert math.isclose(law.exp().sum().item(), 1.0, rel_tol=1e-12)
    assert torch.equal(made.law([3]), made.law([0, 3])), "before the first token is token 0"


@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_forward_gives_the_law(cache: str) -> None:
    made = toy()
    for prompt in ([3], [1, 2], [1, 2, 3, 4, 5, 0]):
        held = CACHE_MAKERS[cache]()
        with torch.inference_mode():
            held.open(0, columns=16, device=made.device)
            out = made.prefill(prompt, held)
        assert torch.equal(out.logits[0], made.law(prompt))
    held = prefilled(made, [1, 2], cache)
    with torch.inference_mode():
        assert torch.equal(made.prefill([3], held).logits[0], made.law([2, 3]))


def test_greedy_text_follows_the_table() -> None:
    made, tokens = toy(), [1, 2]
    for _ in range(20):
        tokens.append(int(made.law(tokens).argmax()))
    assert decode(Composition(target=made), (1, 2), 20).tokens == tokens[2:]


def test_blend_moves_the_law_away() -> None:
    exact = toy().table.exp()
    distances = [
        float((toy(blend=blend).table.exp() - exact).abs().sum(-1).mean() / 2)
        for blend in (0.0, 0.1, 0.5, 1.0)
    ]
    assert distances[0] == 0
    assert distances == sorted(distances)
    assert distances[-1] > 0.3


def test_letters_are_its_words() -> None:
    letters = Letters(6)
    assert letters.encode("a b, fz") == [0, 1, 5]
    assert letters.decode([0, 1, 5]) == "abf"
    assert letters.encode_chat([{"role": "user", "content": "cab"}]) == [2, 0, 1]
    assert "".join(map(letters.decoder(), [3, 2])) == "dc"
    assert letters.vocabulary() == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5}
