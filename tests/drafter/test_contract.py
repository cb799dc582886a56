"""Every drafter, plugins included, keeps the contract."""

from __future__ import annotations

import pytest

from specframe.drafter.base import DRAFTERS
from tests.contract import DrafterContract


@pytest.mark.parametrize("name", DRAFTERS.names())
class TestDrafters(DrafterContract):
    """The suite over the registry."""
