"""Streams are pure functions of their counters, uniform, and never give what cannot be."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import get_args

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from specframe.law.streams import Stream, Streams, _unit

STREAMS: tuple[Stream, ...] = get_args(Stream)
ALL = torch.ones(1, dtype=torch.bool)
PROBS = [0.05, 0.4, 0.0, 0.3, 0.25]


def rows(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


@pytest.mark.parametrize("stream", STREAMS)
def test_uniforms_are_uniform(stream: Stream) -> None:
    values = Streams(seed=3).uniform(stream, 7, torch.arange(20_000))
    assert values.dtype == torch.float64
    assert values.min() > 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 4 * (1 / 12 / 20_000) ** 0.5
    assert chisquare(torch.histc(values, bins=100, min=0, max=1).numpy()).pvalue > 1e-4


def test_no_bits_give_zero_or_one() -> None:
    """At u = 1 the noise would be 0, and 0 / 0 would make an impossible token the arg max."""
    values = _unit(torch.tensor([0, -1, 2**63 - 1, -(2**63)]))
    assert values.min() > 0
    assert values.max() < 1


def test_neighbouring_counters_are_uncorrelated() -> None:
    grid = Streams(seed=0).uniform("draft", torch.arange(200)[:, None], torch.arange(200))
    flat = grid - grid.mean()
    for shifted in (flat.roll(1, 0), flat.roll(1, 1), flat.T):
        correlation = (flat * shifted).mean() / flat.var()
        assert abs(correlation) < 5 / 200


def test_integers_and_tensors_agree() -> None:
    streams = Streams(seed=123456789, sequence=4)
    counters = (0, 5, -1, 2**40)
    plain = streams.uniform("accept", *counters)
    for mask in itertools.product([False, True], repeat=len(counters)):
        mixed = [torch.tensor(c) if t else c for c, t in zip(counters, mask, strict=True)]
        assert streams.uniform("accept", *mixed) == plain


def test_streams_seeds_sequences_and_counters_do_not_collide() -> None:
    values: list[float] = []
    for seed, sequence, stream in itertools.product(range(4), range(4), STREAMS):
        grid = Streams(seed=seed, sequence=sequence)
        counters = torch.arange(-1, 20)
        values += grid.uniform(stream, counters[:, None], counters).view(-1).tolist()
    assert len(set(values)) == len(values)


def test_argument_order_matters() -> None:
    streams = Streams(seed=0)
    assert streams.uniform("draft", 1, 2) != streams.uniform("draft", 2, 1)
    assert streams.uniform("draft", 1) != streams.uniform("draft", 1, 0)


def test_nothing_depends_on_global_state_or_order() -> None:
    def ask() -> Tensor:
        return Streams(seed=1).uniform("draft", torch.arange(5))

    torch.manual_seed(0)
    first = ask()
    torch.manual_seed(99)
    torch.rand(10)
    assert torch.equal(ask(), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_categorical_follows_its_law(dtype: torch.dtype) -> None:
    count = 20_000
    probs = torch.tensor(PROBS, dtype=dtype).expand(count, -1)
    drawn = Streams(seed=5).categorical("draft", probs, (torch.arange(count),), rows(count))
    seen = Counter(drawn.tolist())
    assert seen[2] == 0
    possible = [token for token, p in enumerate(PROBS) if p]
    observed = [seen[token] for token in possible]
    assert chisquare(observed, [PROBS[token] * count for token in possible]).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("u", [0.0, 2.0**-54, 0.3, 0.5, 1 - 2.0**-53, 1.0])
def test_categorical_at_the_edges_gives_only_what_has_mass(u: float, dtype: torch.dtype) -> None:
    class Fixed(Streams):
        def uniform(self, stream: Stream, *counters: int | Tensor) -> Tensor:
            return torch.full((4,), u, dtype=torch.float64)

    probs = torch.tensor(
        [[0.0, 0.3, 0.7, 0.0], [0, 0, 0, 1e-30], [1 / 3, 0, 1 / 3, 0], [1e-8, 0, 1.0, 0]],
        dtype=dtype,
    )
    drawn = Fixed(seed=0).categorical("accept", probs, (0,), rows(4))
    assert (probs.gather(1, drawn[:, None]) > 0).all()


def test_categorical_needs_no_normalisation() -> None:
    probs = torch.rand(64, 7, dtype=torch.float64)
    counters = (torch.arange(64),)
    first = Streams(seed=0).categorical("draft", probs, counters, rows(64))
    assert torch.equal(first, Streams(seed=0).categorical("draft", 4 * probs, counters, rows(64)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_target_noise_samples_the_law(dtype: torch.dtype) -> None:
    streams, probs = Streams(seed=2), torch.tensor([PROBS], dtype=dtype)
    seen = Counter(int(streams.target(probs, position, ALL)) for position in range(4000))
    assert seen[2] == 0
    possible = [token for token, p in enumerate(PROBS) if p]
    expected = [PROBS[token] * 4000 for token in possible]
    assert chisquare([seen[token] for token in possible], expected).pvalue > 1e-4


def test_target_noise_is_shared_by_all_rows_of_a_position() -> None:
    streams, probs = Streams(seed=2), torch.tensor([PROBS] * 3)
    alone = streams.target(probs[:1], 9, ALL)
    assert streams.target(probs, 9, rows(3)).tolist() == alone.tolist() * 3
    positions = torch.tensor([7, 8, 9])
    each = [int(streams.target(probs[:1], int(place), ALL)) for place in positions]
    noise = streams.noise(positions[:, None], torch.arange(5))
    assert (probs / noise).argmax(-1).tolist() == each


def test_the_first_coupled_draw_is_the_targets_token() -> None:
    streams, law = Streams(seed=8), torch.tensor([PROBS])
    for position in range(50):
        drawn = streams.coupled(law, None, position, 3)[0].tolist()
        assert drawn[0] == int(streams.target(law, position, ALL))
        assert len(set(drawn)) == 3


def test_coupled_draws_of_a_smaller_vocabulary_use_the_targets_ids() -> None:
    streams, ids = Streams(seed=8), torch.tensor([1, 3, 4])
    law = torch.tensor([PROBS])
    wide = torch.zeros_like(law).index_copy(1, ids, law[:, ids])
    for position in range(50):
        narrow = ids[streams.coupled(law[:, ids], ids, position, 1)]
        assert int(narrow) == int(streams.coupled(wide, None, position, 1))


def test_coins_land_as_often_as_they_should_and_zero_never() -> None:
    streams, counters = Streams(seed=0), (torch.arange(20_000),)
    for probability in (0.0, 0.2, 1.0):
        landed = streams.coin(torch.full((20_000,), probability), counters, rows(20_000))
        assert abs(landed.double().mean() - probability) < 0.015
        if probability in (0.0, 1.0):
            assert landed.double().mean() == probability


def test_a_coin_of_zero_fails_even_at_the_lowest_uniform() -> None:
    class Lowest(Streams):
        def uniform(self, stream: Stream, *counters: int | Tensor) -> Tensor:
            return torch.zeros(1, dtype=torch.float64)

    assert not Lowest(seed=0).coin(torch.zeros(1), (0,), ALL)
