"""What every cache manager promises, checked with plain tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specframe.cache.base import CACHES, CacheManager
from tests.small_models import CACHE_MAKERS, CPU, alone

LAYERS = 2


def make(name: str) -> CacheManager:
    """An empty cache; one that no test knows is built from its class without arguments."""
    made = CACHE_MAKERS[name]() if name in CACHE_MAKERS else CACHES.get(name)()
    made.open(0, columns=400, device=CPU)
    return made


@pytest.fixture(params=CACHES.names())
def cache(request: pytest.FixtureRequest) -> CacheManager:
    return make(request.param)


def entries(tokens: list[int]) -> Tensor:
    """[1, 2, R, 3] keys that say which token they belong to."""
    base = torch.tensor(tokens, dtype=torch.float64)
    return base.view(1, 1, -1, 1) * torch.ones(1, 2, 1, 3, dtype=torch.float64)


def write(cache: CacheManager, tokens: list[int], slots: Tensor) -> None:
    opened = cache.opened(alone(slots))
    for layer in range(LAYERS):
        keys, values = opened.dense(
            layer, entries(tokens) + 1000 * layer, -entries(tokens) - 1000 * layer
        )
        assert keys.shape == values.shape == (1, 2, opened.visible().shape[1], 3)
        assert torch.equal(keys[0, 0, slots, 0], entries(tokens)[0, 0, :, 0] + 1000 * layer)


def put(cache: CacheManager, tokens: list[int]) -> None:
    slots = cache.reserve([len(tokens)])
    write(cache, tokens, slots)
    cache.commit(slots, [len(tokens)], moved=[False])


def held(cache: CacheManager, layer: int = 0) -> list[int]:
    keys, values = cache.committed(layer)
    assert torch.equal(keys, -values)
    assert keys.shape[2] == cache.lengths[0]
    return [int(one) - 1000 * layer for one in keys[0, 1, :, 2]]


def assert_consistent(cache: CacheManager) -> None:
    assert cache.extents[0] == cache.lengths[0]


def test_slots_are_fresh_and_in_order(cache: CacheManager) -> None:
    assert cache.reserve([3]).slots.tolist() == [0, 1, 2]
    assert cache.reserve([2]).slots.tolist() == [3, 4]
    assert (cache.lengths[0], cache.extents[0]) == (0, 5)
    cache.discard(0)
    assert cache.reserve([1]).slots.tolist() == [0]


def test_scattered_path_is_gathered(cache: CacheManager) -> None:
    put(cache, [10, 11, 12])
    slots = cache.reserve([6])
    write(cache, [20, 21, 22, 23, 24, 25], slots)
    cache.commit(slots[torch.tensor([0, 2, 5])], [3], moved=[True])
    for layer in range(LAYERS):
        assert held(cache, layer) == [10, 11, 12, 20, 22, 25]
    assert_consistent(cache)


def test_moves_may_overlap_and_go_against_the_order(cache: CacheManager) -> None:
    put(cache, [10])
    slots = cache.reserve([5])
    write(cache, [20, 21, 22, 23, 24], slots)
    cache.commit(
        slots[torch.tensor([4, 0, 1, 2, 3])], [5], moved=[True]
    )  # every one moves onto another
    assert held(cache) == [10, 24, 20, 21, 22, 23]
    assert_consistent(cache)


def test_count_limits_what_is_committed(cache: CacheManager) -> None:
    slots = cache.reserve([4])
    write(cache, [1, 2, 3, 4], slots)
    cache.commit(slots, [2], moved=[True])
    assert held(cache) == [1, 2]
    put(cache, [7])
    assert held(cache) == [1, 2, 7]
    slots = cache.reserve([2])
    write(cache, [8, 9], slots)
    cache.commit(slots, [0], moved=[True])
    assert held(cache) == [1, 2, 7]
    assert_consistent(cache)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_truncation(cache: CacheManager, count: int) -> None:
    put(cache, [1, 2, 3])
    cache.truncate(0, 3 - count)
    assert held(cache) == [1, 2, 3][: 3 - count]
    assert_consistent(cache)
    put(cache, [9, 8])
    assert held(cache) == [*[1, 2, 3][: 3 - count], 9, 8]
    assert_consistent(cache)


def test_impossible_truncation_is_refused(cache: CacheManager) -> None:
    put(cache, [1, 2, 3])
    for length in (5, -1, -2):
        with pytest.raises(ValueError, match=rf"cannot truncate a cache of 3 tokens to {length}"):
            cache.truncate(0, length)
    assert held(cache) == [1, 2, 3]


def test_old_slots_are_written_anew(cache: CacheManager) -> None:
    put(cache, [1, 2])
    write(cache, [50, 51, 52], cache.reserve([3]).slots)
    cache.discard(0)
    put(cache, [3, 4])
    assert held(cache) == [1, 2, 3, 4]


def test_long_texts(cache: CacheManager) -> None:
    for start in range(0, 390, 39):
        put(cache, list(range(start, start + 39)))
        write(cache, [7, 7, 7], cache.reserve([3]).slots)
        cache.discard(0)
    assert held(cache) == list(range(390))
    assert_consistent(cache)


def test_reset_forgets(cache: CacheManager) -> None:
    put(cache, [1, 2, 3])
    cache.reserve([2])
    cache.open(0, columns=400, device=CPU)
    assert (cache.lengths[0], cache.extents[0]) == (0, 0)
    put(cache, [5])
    assert held(cache) == [5]


def test_layers_may_come_late(cache: CacheManager) -> None:
    """A layer that was skipped so far is written when it first runs."""
    slots = cache.reserve([2])
    cache.opened(alone(slots)).dense(0, entries([1, 2]), -entries([1, 2]))
    cache.commit(slots, [2], moved=[False])
    slots = cache.reserve([1])
    keys, _ = cache.opened(alone(slots)).dense(1, entries([3]), -entries([3]))
    assert keys[0, 0, :3, 0].tolist() == [0, 0, 3]
