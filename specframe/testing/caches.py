"""The suite of tests for cache managers: what each promises, checked with plain tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.testing.defaults import ComponentContract, component

LAYERS = 2


def entries(tokens: list[int]) -> Tensor:
    """[1, 2, R, 3] keys that say which token they belong to."""
    base = torch.tensor(tokens, dtype=torch.float64)
    return base.view(1, 1, -1, 1) * torch.ones(1, 2, 1, 3, dtype=torch.float64)


def write(cache: CacheManager, tokens: list[int], slots: Tensor) -> None:
    """Write tokens into slots of every layer; what was written can be read there."""
    for layer in range(LAYERS):
        keys, values = cache.update(
            layer, entries(tokens) + 1000 * layer, -entries(tokens) - 1000 * layer, slots
        )
        assert keys.shape == values.shape == (1, 2, cache.width, 3)
        assert torch.equal(keys[0, 0, slots, 0], entries(tokens)[0, 0, :, 0] + 1000 * layer)


def put(cache: CacheManager, tokens: list[int]) -> None:
    """Write and commit tokens behind what is committed."""
    slots = cache.reserve(len(tokens))
    write(cache, tokens, slots)
    cache.commit(slots, len(tokens), moved=False)


def contents(cache: CacheManager, layer: int = 0) -> list[int]:
    """The tokens that are committed in a layer."""
    keys, values = cache.read(layer)
    assert torch.equal(keys, -values)
    assert keys.shape[2] == cache.length
    return [int(one) - 1000 * layer for one in keys[0, 1, :, 2]]


def assert_consistent(cache: CacheManager) -> None:
    """Nothing is reserved, and the length on the device is the host's."""
    assert cache.extent == cache.length
    assert int(cache.length_tensor) == cache.length
    assert cache.positions[: cache.length].tolist() == list(range(cache.length))


class CacheContract(ComponentContract):
    """What every cache manager does with keys and values that say which token they belong to."""

    @pytest.fixture
    def cache(self, name: str) -> CacheManager:
        """An empty cache with room for 400 rows, as its YAML file sets it up."""
        cache: CacheManager = component("cache", name)
        cache.reset(rows=400, device=torch.device("cpu"))
        return cache

    def test_slots_are_fresh_and_in_order(self, cache: CacheManager) -> None:
        assert cache.reserve(3).tolist() == [0, 1, 2]
        assert cache.reserve(2).tolist() == [3, 4]
        assert (cache.length, cache.extent) == (0, 5)
        assert cache.width >= 5
        cache.discard()
        assert cache.reserve(1).tolist() == [0]

    def test_scattered_path_is_gathered(self, cache: CacheManager) -> None:
        put(cache, [10, 11, 12])
        slots = cache.reserve(6)
        write(cache, [20, 21, 22, 23, 24, 25], slots)
        cache.commit(slots[torch.tensor([0, 2, 5])], 3)
        for layer in range(LAYERS):
            assert contents(cache, layer) == [10, 11, 12, 20, 22, 25]
        assert_consistent(cache)

    def test_moves_may_overlap_and_go_against_the_order(self, cache: CacheManager) -> None:
        put(cache, [10])
        slots = cache.reserve(5)
        write(cache, [20, 21, 22, 23, 24], slots)
        cache.commit(slots[torch.tensor([4, 0, 1, 2, 3])], 5)  # every one moves onto another
        assert contents(cache) == [10, 24, 20, 21, 22, 23]
        assert_consistent(cache)

    def test_count_limits_what_is_committed(self, cache: CacheManager) -> None:
        slots = cache.reserve(4)
        write(cache, [1, 2, 3, 4], slots)
        cache.commit(slots, 2)
        assert contents(cache) == [1, 2]
        put(cache, [7])
        assert contents(cache) == [1, 2, 7]
        slots = cache.reserve(2)
        write(cache, [8, 9], slots)
        cache.commit(slots, 0)
        assert contents(cache) == [1, 2, 7]
        assert_consistent(cache)

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_truncation(self, cache: CacheManager, count: int) -> None:
        put(cache, [1, 2, 3])
        cache.truncate(3 - count)
        assert contents(cache) == [1, 2, 3][: 3 - count]
        assert_consistent(cache)
        put(cache, [9, 8])
        assert contents(cache) == [*[1, 2, 3][: 3 - count], 9, 8]
        assert_consistent(cache)

    def test_impossible_truncation_is_refused(self, cache: CacheManager) -> None:
        put(cache, [1, 2, 3])
        for length in (5, -1, -2):
            with pytest.raises(ValueError, match=rf"of 3 tokens to {length}"):
                cache.truncate(length)
        assert contents(cache) == [1, 2, 3]

    def test_old_slots_are_written_anew(self, cache: CacheManager) -> None:
        put(cache, [1, 2])
        write(cache, [50, 51, 52], cache.reserve(3))
        cache.discard()
        put(cache, [3, 4])
        assert contents(cache) == [1, 2, 3, 4]

    def test_long_texts(self, cache: CacheManager) -> None:
        for start in range(0, 390, 39):
            put(cache, list(range(start, start + 39)))
            write(cache, [7, 7, 7], cache.reserve(3))
            cache.discard()
        assert contents(cache) == list(range(390))
        assert_consistent(cache)

    def test_reset_forgets(self, cache: CacheManager) -> None:
        put(cache, [1, 2, 3])
        cache.reserve(2)
        cache.reset(rows=400, device=torch.device("cpu"))
        assert (cache.length, cache.extent, int(cache.length_tensor)) == (0, 0, 0)
        put(cache, [5])
        assert contents(cache) == [5]

    def test_layers_may_come_late(self, cache: CacheManager) -> None:
        """A layer that was skipped so far is written when it first runs."""
        slots = cache.reserve(2)
        cache.update(0, entries([1, 2]), -entries([1, 2]), slots)
        cache.commit(slots, 2, moved=False)
        slots = cache.reserve(1)
        keys, _ = cache.update(1, entries([3]), -entries([3]), slots)
        assert keys[0, 0, :3, 0].tolist() == [0, 0, 3]
