"""Every cache manager, plugins included, keeps the contract."""

from __future__ import annotations

import pytest

from specframe.cache.base import CACHES, CacheManager
from specframe.testing.caches import CacheContract
from tests.small_models import CACHE_MAKERS, CPU


@pytest.mark.parametrize("name", CACHES.names())
class TestCaches(CacheContract):
    """The suite over the registry, and in small blocks."""


@pytest.mark.parametrize("name", CACHE_MAKERS)
class TestSmallCaches(CacheContract):
    """The same with the small blocks of other tests, which grow more often."""

    @pytest.fixture
    def cache(self, name: str) -> CacheManager:
        cache = CACHE_MAKERS[name]()
        cache.open(0, columns=400, device=CPU)
        return cache
