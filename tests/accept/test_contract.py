"""Every acceptance rule, plugins included, keeps the contract."""

from __future__ import annotations

import pytest

from specframe.accept.base import RULES
from specframe.testing.rules import RuleContract


@pytest.mark.parametrize("name", RULES.names())
class TestRules(RuleContract):
    """The suite over the registry."""
