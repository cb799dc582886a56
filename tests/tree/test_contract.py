"""Every tree policy, plugins included, keeps the contract."""

from __future__ import annotations

import pytest

from specframe.testing.trees import TreeContract
from specframe.tree.base import TREES


@pytest.mark.parametrize("name", TREES.names())
class TestTrees(TreeContract):
    """The suite over the registry."""
