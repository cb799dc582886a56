"""The suite of tests for cache managers: what each promises, checked with plain tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.testing.defaults import ComponentContract
from specframe.types import Rows

LAYERS = 2


def entries(tokens: list[int]) -> Tensor:
    """[1, 2, R, 3] keys that say which token they belong to."""
    base = torch.tensor(tokens, dtype=torch.float64)
    return base.view(1, 1, -1, 1) * torch.ones(1, 2, 1, 3, dtype=torch.float64)


def alone(slots: Tensor) -> Rows:
    """Rows that see themselves alone, for passes whose masks do not matter."""
    return Rows(tokens=slots, positions=slots, slots=slots, prefix=torch.zeros_like(slots))


def write(cache: CacheManager, tokens: list[int], slots: Tensor) -> None:
    """Write tokens into slots of every layer; what was written can be read there."""
    opened = cache.opened(alone(slots))
    for layer in range(LAYERS):
        keys, values = opened.dense(
            layer, entries(tokens) + 1000 * layer, -entries(tokens) - 1000 * layer
        )
        assert keys.shape == values.shape == (1, 2, opened.visible().shape[1], 3)
        assert torch.equal(keys[0, 0, slots, 0], entries(tokens)[0, 0, :, 0] + 1000 * layer)


def put(cache: CacheManager, tokens: list[int]) -> None:
    """Write and commit tokens behind what is committed."""
    slots = cache.reserve([len(tokens)]).slots
    write(cache, tokens, slots)
    cache.commit(slots, [len(tokens)], moved=[False])


def contents(cache: CacheManager, layer: int = 0) -> list[int]:
    """The tokens that are committed in a layer, as a row behind all of them sees them."""
    length = cache.lengths[0]
    fresh = cache.reserve([1])
    rows = Rows(
        tokens=fresh.slots,
        positions=fresh.columns + length,
        slots=fresh.slots,
        prefix=torch.full_like(fresh.slots, length),
    )
    opened = cache.opened(rows)
    keys, values = opened.dense(layer, entries([0]), -entries([0]))
    seen = opened.visible()[0].nonzero()[:-1, 0]
    cache.discard(0)
    assert len(seen) == length
    assert torch.equal(keys[:, :, seen], -values[:, :, seen])
    return [int(key) - 1000 * layer for key in keys[0, 1, seen, 2]]


def assert_consistent(cache: CacheManager) -> None:
    """Nothing is reserved."""
    assert cache.extents[0] == cache.lengths[0]


class CacheContract(ComponentContract):
    """What every cache manager does with keys and values that say which token they belong to."""

    @pytest.fixture
    def cache(self, name: str) -> CacheManager:
        """An empty cache with room for 400 rows, as its YAML file sets it up."""
        cache: CacheManager = self.component("cache", name)
        cache.open(0, columns=400, device=torch.device("cpu"))
        return cache

    def test_slots_are_fresh_and_in_order(self, cache: CacheManager) -> None:
        assert cache.reserve([3]).slots.tolist() == [0, 1, 2]
        assert cache.reserve([2]).slots.tolist() == [3, 4]
        assert (cache.lengths[0], cache.extents[0]) == (0, 5)
        cache.discard(0)
        assert cache.reserve([1]).slots.tolist() == [0]

    def test_scattered_path_is_gathered(self, cache: CacheManager) -> None:
        put(cache, [10, 11, 12])
        slots = cache.reserve([6]).slots
        write(cache, [20, 21, 22, 23, 24, 25], slots)
        cache.commit(slots[torch.tensor([0, 2, 5])], [3], moved=[True])
        for layer in range(LAYERS):
            assert contents(cache, layer) == [10, 11, 12, 20, 22, 25]
        assert_consistent(cache)

    def test_moves_may_overlap_and_go_against_the_order(self, cache: CacheManager) -> None:
        put(cache, [10])
        slots = cache.reserve([5]).slots
        write(cache, [20, 21, 22, 23, 24], slots)
        cache.commit(
            slots[torch.tensor([4, 0, 1, 2, 3])], [5], moved=[True]
        )  # every one moves onto another
        assert contents(cache) == [10, 24, 20, 21, 22, 23]
        assert_consistent(cache)

    def test_count_limits_what_is_committed(self, cache: CacheManager) -> None:
        slots = cache.reserve([4]).slots
        write(cache, [1, 2, 3, 4], slots)
        cache.commit(slots, [2], moved=[True])
        assert contents(cache) == [1, 2]
        put(cache, [7])
        assert contents(cache) == [1, 2, 7]
        slots = cache.reserve([2]).slots
        write(cache, [8, 9], slots)
        cache.commit(slots, [0], moved=[True])
        assert contents(cache) == [1, 2, 7]
        assert_consistent(cache)

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_truncation(self, cache: CacheManager, count: int) -> None:
        put(cache, [1, 2, 3])
        cache.truncate(0, 3 - count)
        assert contents(cache) == [1, 2, 3][: 3 - count]
        assert_consistent(cache)
        put(cache, [9, 8])
        assert contents(cache) == [*[1, 2, 3][: 3 - count], 9, 8]
        assert_consistent(cache)

    def test_impossible_truncation_is_refused(self, cache: CacheManager) -> None:
        put(cache, [1, 2, 3])
        for length in (5, -1, -2):
            with pytest.raises(ValueError, match=rf"of 3 tokens to {length}"):
                cache.truncate(0, length)
        assert contents(cache) == [1, 2, 3]

    def test_old_slots_are_written_anew(self, cache: CacheManager) -> None:
        put(cache, [1, 2])
        write(cache, [50, 51, 52], cache.reserve([3]).slots)
        cache.discard(0)
        put(cache, [3, 4])
        assert contents(cache) == [1, 2, 3, 4]

    def test_long_texts(self, cache: CacheManager) -> None:
        for start in range(0, 390, 39):
            put(cache, list(range(start, start + 39)))
            write(cache, [7, 7, 7], cache.reserve([3]).slots)
            cache.discard(0)
        assert contents(cache) == list(range(390))
        assert_consistent(cache)

    def test_reset_forgets(self, cache: CacheManager) -> None:
        put(cache, [1, 2, 3])
        cache.reserve([2])
        cache.open(0, columns=400, device=torch.device("cpu"))
        assert (cache.lengths[0], cache.extents[0]) == (0, 0)
        put(cache, [5])
        assert contents(cache) == [5]

    def test_values_may_have_another_size_than_keys(self, cache: CacheManager) -> None:
        def wide(count: int) -> tuple[Tensor, Tensor]:
            return torch.arange(5.0 * count).view(1, 1, count, 5), -torch.ones(1, 1, count, 2)

        for count in (3, 300):  # the second time the memory grows, where it does
            slots = cache.reserve([count]).slots
            keys, values = cache.opened(alone(slots)).dense(0, *wide(count))
            assert torch.equal(keys[:, :, slots], wide(count)[0])
            assert torch.equal(values[:, :, slots], wide(count)[1])
            cache.commit(slots.flip(0), [2], moved=[True])
        assert cache.lengths[0] == 4

    def test_layers_may_come_late(self, cache: CacheManager) -> None:
        """A layer that was skipped so far is written when it first runs."""
        slots = cache.reserve([2]).slots
        cache.opened(alone(slots)).dense(0, entries([1, 2]), -entries([1, 2]))
        cache.commit(slots, [2], moved=[False])
        slots = cache.reserve([1]).slots
        keys, _ = cache.opened(alone(slots)).dense(1, entries([3]), -entries([3]))
        assert keys[0, 0, :3, 0].tolist() == [0, 0, 3]
