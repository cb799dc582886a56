"""What the tests of all recipes train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.recipe_contract import write_material


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk, and its answers."""
    return write_material(tmp_path_factory.mktemp("train"))
