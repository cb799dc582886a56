"""Checked streams give what ordinary ones give, each number once."""

from __future__ import annotations

import pytest
import torch

from specframe.law.checked_streams import CheckedStreams, ReusedDraw
from specframe.law.streams import Streams
from tests.small_models import Composition, lm_of, sampling_config, toy

YES = torch.ones(1, dtype=torch.bool)
HALF = torch.tensor([0.5])


def test_they_give_what_streams_of_the_same_seed_give() -> None:
    probs = torch.rand(3, 7, generator=torch.Generator().manual_seed(0))
    every = torch.ones(3, dtype=torch.bool)
    for position in range(20):
        plain, checked = (kind(seed=3, sequence=2) for kind in (Streams, CheckedStreams))
        counters = (position, torch.arange(3))
        for rng in (plain, checked):
            rng.tokens = [  # type: ignore[attr-defined]
                rng.target(probs, position, every).tolist(),
                rng.categorical("draft", probs, counters, every).tolist(),
                rng.coin(HALF, (position, 5), YES).tolist(),
                rng.coupled(probs, None, position, 2).tolist(),
            ]
        assert plain.tokens == checked.tokens  # type: ignore[attr-defined]


def test_coupled_draws_and_explanations_may_repeat() -> None:
    rng = CheckedStreams(seed=0)
    rng.coin(HALF, (4, 0), YES)
    rng.uniform("accept", 4, 0)
    for _ in range(2):
        rng.coupled(torch.ones(1, 3), None, 4, 1)
    rng.target(torch.ones(1, 3), 4, YES)
    with pytest.raises(ReusedDraw):
        rng.target(torch.ones(1, 3), 4, YES)
    with pytest.raises(ReusedDraw):
        rng.coin(HALF, (4, 0), YES)


def test_a_loop_that_goes_back_gets_its_noise_again() -> None:
    composition = Composition(
        target=toy(), drafter=lm_of(toy(blend=0.3), toy()), sampling=sampling_config(1.0)
    )
    loop = composition.decoding(12, checked=True)
    emissions = loop.run((1, 2, 3))
    for _ in range(3):
        next(emissions)
    rng = loop.lane.rng
    assert isinstance(rng, CheckedStreams)
    before = loop.context.tokens
    with pytest.raises(ReusedDraw):
        rng.target(torch.ones(1, 3), 3, YES)  # the first token's
    loop.truncate(3 + 1)
    for _ in emissions:
        pass
    assert loop.context.tokens[: len(before)] == before
