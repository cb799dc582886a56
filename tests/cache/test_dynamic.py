"""The growing cache."""

from __future__ import annotations

import torch

from specframe.cache.dynamic import DynamicCache
from tests.small_models import CPU


def test_attention_sees_no_more_than_was_reserved() -> None:
    cache = DynamicCache()
    cache.reset(rows=10, device=CPU)
    for rows in (1, 5, 2):
        cache.reserve(rows)
        assert cache.width == cache.extent
    assert cache.capacity is None


def test_grows_by_doubling() -> None:
    cache = DynamicCache()
    cache.reset(rows=10, device=CPU)
    sizes, addresses = set(), set()
    for token in range(1000):
        slots = cache.reserve(1)
        key = torch.full((1, 1, 1, 1), float(token))
        cache.update(0, key, key, slots)
        cache.commit(slots, 1, moved=False)
        sizes.add(cache._keys[0].shape[2])
        addresses.add(cache._keys[0].data_ptr())
    assert sizes == {128, 256, 512, 1024}
    assert len(addresses) <= 4, "copied more often than it grew"
    assert cache.read(0)[0].flatten().tolist() == list(range(1000))


def test_reset_gives_memory_back() -> None:
    cache = DynamicCache()
    cache.reset(rows=10, device=CPU)
    slots = cache.reserve(300)
    cache.update(0, torch.zeros(1, 1, 300, 1), torch.zeros(1, 1, 300, 1), slots)
    cache.reset(rows=10, device=CPU)
    assert not cache._keys
    slots = cache.reserve(1)
    cache.update(0, torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), slots)
    assert cache._keys[0].shape[2] == 128
