"""Every target, plugins included, keeps the contract."""

from __future__ import annotations

import pytest

import specframe
from specframe.target.base import TARGETS, Target
from specframe.testing.targets import TargetContract
from tests.small_models import target as tiny
from tests.small_models import toy


@pytest.mark.parametrize("name", TARGETS.names())
class TestTargets(TargetContract):
    """The suite over the registry, with small models in float64 where there are any."""

    @pytest.fixture
    def target(self, name: str) -> Target:
        if name == "hf":
            return tiny("llama")
        if name == "toy":
            return toy()
        exact = ["target.dtype=float64"] if name == "random" else []
        return specframe.load([f"target={name}", "drafter=none", *exact]).components.target
