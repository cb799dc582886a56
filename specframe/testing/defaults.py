"""Components with the values of their YAML files, and what the suites of several axes share."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    """A suite for one component, which the attribute `word` of a subclass names.

    values: values of its YAML keys for the suite, where those of the file will not do.
    """

    word: ClassVar[str]
    values: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def name(self) -> str:
        """The word; a suite over a registry parametrises it instead."""
        return type(self).word

    def component(self, axis: str, word: str, **changes: Any) -> Any:
        """The component with the values of its YAML file, of the suite, and of this call."""
        return component(axis, word, **{**type(self).values, **changes})

    def keys(self, axis: str) -> tuple[str, ...]:
        """The values of the suite as words of the command line."""
        given = type(self).values.items()
        return tuple(f"{axis}.{key}={json.dumps(value)}" for key, value in given)
