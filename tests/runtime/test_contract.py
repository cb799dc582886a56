"""Every runtime, plugins included, keeps the contract."""

from __future__ import annotations

import pytest

from specframe.runtime.base import RUNTIMES
from specframe.testing.runtimes import RuntimeContract


@pytest.mark.parametrize("name", RUNTIMES.names())
class TestRuntimes(RuntimeContract):
    """The suite over the registry."""
