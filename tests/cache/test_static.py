"""The cache of fixed size."""

from __future__ import annotations

import pytest
import torch

from specframe.cache.static import StaticCache
from specframe.testing.caches import alone
from tests.small_models import CPU


def fill(cache: StaticCache, count: int) -> None:
    slots = cache.reserve([count]).slots
    entries = torch.ones(1, 1, count, 1)
    cache.opened(alone(slots)).dense(0, entries, entries)
    cache.commit(slots, [count], moved=[False])


def test_width_is_a_multiple_of_the_block() -> None:
    cache = StaticCache(capacity=None, block=16)
    cache.open(0, columns=40, device=CPU)
    widths = []
    for _ in range(40):
        fill(cache, 1)
        widths.append(cache.width)
    assert widths == [16] * 16 + [32] * 16 + [40] * 8  # never past what there is


def test_addresses_stay() -> None:
    cache = StaticCache(capacity=None, block=16)
    cache.open(0, columns=50, device=CPU)
    fill(cache, 1)
    address = cache._keys[0].data_ptr()
    fill(cache, 40)
    cache.open(0, columns=30, device=CPU)  # a shorter sequence fits as well
    fill(cache, 5)
    assert cache._keys[0].data_ptr() == address
    assert cache._keys[0].shape[2] == cache.capacity == 50
    cache.open(0, columns=60, device=CPU)
    fill(cache, 60)
    assert cache.capacity == 60


def test_capacity_is_checked_before_any_write() -> None:
    cache = StaticCache(capacity=10, block=4)
    cache.open(0, columns=99, device=CPU)
    assert cache.capacity == 10
    fill(cache, 8)
    before = cache._keys[0].clone()
    with pytest.raises(ValueError, match=r"cache\.capacity=10 cannot hold 11 slots; raise"):
        cache.reserve([3])
    assert (cache.lengths[0], cache.extents[0]) == (8, 8), "a refused reservation leaves no trace"
    assert torch.equal(cache._keys[0], before)
    fill(cache, 2)
    assert cache.lengths[0] == 10


def test_numbers_that_are_not_finite_do_not_outlive_a_reset() -> None:
    cache = StaticCache(capacity=None, block=16)
    cache.open(0, columns=16, device=CPU)
    slots = cache.reserve([9]).slots
    bad = torch.full((1, 1, 9, 1), float("nan"))
    cache.opened(alone(slots)).dense(
        0, bad, bad
    )  # and neither committed nor discarded, as after an error
    cache.open(0, columns=16, device=CPU)
    slots = cache.reserve([1]).slots
    keys, values = cache.opened(alone(slots)).dense(
        0, torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    )
    assert keys[:, :, 1:].isfinite().all()
    assert values[:, :, 1:].isfinite().all()
