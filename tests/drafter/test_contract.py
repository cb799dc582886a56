"""Every drafter, plugins included, keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe.drafter.base import DRAFTERS
from specframe.target.toy import Toy
from specframe.testing.drafters import DrafterContract
from tests.heads.small_heads import words_for


def on_toy(name: str) -> bool:
    """Whether the toy gives what a drafter needs; the others have suites on tiny models."""
    needs, gives = DRAFTERS.get(name).traits.needs, Toy.gives
    return set(needs.taps) <= gives.taps and needs.partial_layers <= gives.partial_layers


@pytest.mark.parametrize("name", [name for name in DRAFTERS.names() if on_toy(name)])
class TestDrafters(DrafterContract):
    """The suite over the registry."""

    @pytest.fixture
    def extra(self, name: str, tmp_path: Path) -> tuple[str, ...]:
        return words_for(name, "toy", tmp_path)


def test_few_are_left_to_their_own_suites() -> None:
    left = [name for name in DRAFTERS.names() if not on_toy(name)]
    assert left == ["eagle3", "early_exit", "layer_skip"]
