"""Options inside an option: the sources of a router, the inner engine of a cascade.

A drafter's YAML may list words of other options under `sources` or `inner`. The keys of a listed
option stand under its own word: `drafter=router drafter.sources=[ngram,lm] drafter.ngram.n_max=5`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader

from specframe.compose.catalogue import check_named, options, schema
from specframe.errors import ConfigError, no_such_option

# Key of a drafter's YAML -> the axes whose words it may list.
LISTS = {"sources": ("drafter",), "inner": ("drafter", "tree", "accept")}
# Keys that no YAML file lists: those of an option inside an option, variables of a template.
_NESTED_KEY = re.compile(r"(drafter\.[^.=]+\.|chat\.template_args\.)[^=]+=")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option in use, at the top of a configuration or listed inside another option."""

    where: str  # the key that its values stand under, such as "tree" or "drafter.ngram"
    axis: str
    word: str  # its YAML file is conf/<axis>/<word>.yaml
    values: dict[str, Any]  # those of its YAML file with the user's changes

    @property
    def label(self) -> str:
        """`axis=word`, as the user would choose it."""
        return f"{self.axis}={self.word}"

    @property
    def is_nested(self) -> bool:
        """Whether another option lists this one."""
        return self.where != self.axis


def with_nested_keys_added(words: Sequence[str]) -> list[str]:
    """Mark the keys that no YAML file lists as additions (`++`)."""
    return [f"++{word}" if _NESTED_KEY.match(word) else word for word in words]


def nested_options(option: Option, loader: ConfigLoader) -> list[Option]:
    """The options that a drafter lists; an option of another axis lists none.

    Raises ConfigError for a word that no option has, and for one that is listed twice.
    """
    if option.axis != "drafter":
        return []
    return [
        _nested_option(option, key, str(word), loader)
        for key in LISTS
        for word in _listed_words(option, key)
    ]


def list_key(option: Option) -> str:
    """The key under which a drafter lists its options, such as "drafter.sources"."""
    lists = (key for key in LISTS if isinstance(option.values.get(key), list))
    return f"{option.where}.{next(lists)}"


def _listed_words(option: Option, key: str) -> list[Any]:
    words = option.values.get(key)
    place = f"{option.where}.{key}"
    if isinstance(words, str):
        raise ConfigError(f"{place}={words}: write a list of words, [{words}]")
    if not isinstance(words, list):
        return []
    if not words:
        raise ConfigError(f"{place}=[]: list at least one word, such as [ngram]")
    for word in words:
        if words.count(word) > 1:
            raise ConfigError(f"{place}: {word} is listed twice; keep one")
    return words


def _nested_option(option: Option, key: str, word: str, loader: ConfigLoader) -> Option:
    place = f"{option.where}.{word}"
    axis = _axis_of(word, f"{option.where}.{key}", LISTS[key], loader)
    changes = option.values.get(word) or {}
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{place}={changes}: write its keys, such as {place}.name")
    check_named(loader, axis, word)
    values = schema(loader, axis, word) | dict(changes)
    return Option(where=place, axis=axis, word=word, values=values)


def _axis_of(word: str, place: str, axes: Sequence[str], loader: ConfigLoader) -> str:
    """The first of these axes that has an option of this word."""
    known = {axis: options(loader, axis) for axis in axes}
    for axis in axes:
        if word in known[axis]:
            return axis
    every = [option for axis in axes for option in known[axis]]
    raise ConfigError(no_such_option(place, word, every, {}))
