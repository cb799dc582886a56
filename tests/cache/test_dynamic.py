"""The growing cache."""

from __future__ import annotations

import torch

from specframe.cache.dynamic import DynamicCache
from specframe.testing.caches import alone
from tests.small_models import CPU


def test_attention_sees_no_more_than_was_reserved() -> None:
    cache = DynamicCache()
    cache.open(0, columns=10, device=CPU)
    for rows in (1, 5, 2):
        cache.reserve([rows])
        assert cache.width == cache.extents[0]
    assert cache.capacity is None


def test_grows_by_doubling() -> None:
    cache = DynamicCache()
    cache.open(0, columns=10, device=CPU)
    sizes, addresses = set(), set()
    for token in range(1000):
        slots = cache.reserve([1]).slots
        key = torch.full((1, 1, 1, 1), float(token))
        cache.opened(alone(slots)).dense(0, key, key)
        cache.commit(slots, [1], moved=[False])
        sizes.add(cache._keys[0].shape[2])
        addresses.add(cache._keys[0].data_ptr())
    assert sizes == {128, 256, 512, 1024}
    assert len(addresses) <= 4, "copied more often than it grew"
    assert cache.committed(0)[0].flatten().tolist() == list(range(1000))


def test_reset_gives_memory_back() -> None:
    cache = DynamicCache()
    cache.open(0, columns=10, device=CPU)
    slots = cache.reserve([300]).slots
    cache.opened(alone(slots)).dense(0, torch.zeros(1, 1, 300, 1), torch.zeros(1, 1, 300, 1))
    cache.open(0, columns=10, device=CPU)
    assert not cache._keys
    slots = cache.reserve([1]).slots
    cache.opened(alone(slots)).dense(0, torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    assert cache._keys[0].shape[2] == 128
