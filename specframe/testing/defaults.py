"""Components with the values of their YAML files, and what the suites of several axes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from specframe.compose import catalogue
from specframe.compose.axes import AXES
from specframe.compose.binding import bind
from specframe.registry import Registry
from specframe.testing.draft_checks import CHEAP

# Prompts for target=toy, whose vocabulary has six tokens.
PROMPTS = ((1, 2, 3, 1, 2), (4, 0, 4, 0, 5, 5, 4, 0))
NEW_TOKENS = 24


def component(axis: str, word: str, **changes: Any) -> Any:
    """The component `axis=word` with the values of its YAML file and some changes of them.

    A tree that asks for costs gets a table in which rows are cheap and guesses often right.
    """
    registry: Registry[Any] = AXES[axis]
    with catalogue.configuration() as loader:
        values = catalogue.schema(loader, axis, word) | changes
    if axis == "tree" and "costs" in values:
        values["costs"] = CHEAP
    chosen = registry.get(word)
    return chosen(**bind(chosen, values, where=axis))


def costs_words(tree: str) -> list[str]:
    """The words that hand a tree its costs, if it asks: rows are cheap, guesses often right."""
    with catalogue.configuration() as loader:
        asks = "costs" in catalogue.schema(loader, "tree", tree)
    return [f"tree.costs={Path(__file__).with_name('costs.json')}"] if asks else []


class ComponentContract:
    """A suite for one component, which the attribute `word` of a subclass names."""

    word: ClassVar[str]

    @pytest.fixture
    def name(self) -> str:
        """The word; a suite over a registry parametrises it instead."""
        return type(self).word
