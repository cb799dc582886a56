"""Options inside an option: the sources of a router, the inner engine of a cascade.

A drafter's YAML may list words of other options under `sources` or `inner`. The keys of a listed
option stand under its own word: `drafter=router drafter.sources=[ngram,lm] drafter.ngram.n_max=5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader

from specframe.compose.binding import no_such_field
from specframe.compose.catalogue import groups, options, schema
from specframe.errors import ConfigError
from specframe.registry import no_such_option

# Key of a drafter's YAML -> the axes whose words it may list.
LISTS = {"sources": ("drafter",), "inner": ("drafter", "tree", "accept")}
_NESTED = re.compile(r"drafter\.[^.=]+\.[^=]+=")


@dataclass(frozen=True)
class Member:
    """A listed option: where its keys stand, its axis, and its values with the user's changes."""

    where: str
    axis: str
    word: str
    values: dict[str, Any]


def addable(words: Sequence[str]) -> list[str]:
    """The words with keys of members marked as additions, since no YAML file lists them there."""
    return [f"++{word}" if _NESTED.match(word) else word for word in words]


def is_composite(values: Mapping[str, Any]) -> bool:
    """Whether an option lists others."""
    return any(isinstance(values.get(key), list) for key in LISTS)


def members(where: str, values: Mapping[str, Any], loader: ConfigLoader) -> Iterator[Member]:
    """The options that a drafter's values list. Raises ConfigError for a word there is not."""
    for key, axes in LISTS.items():
        listed = values.get(key)
        if isinstance(listed, str):
            raise ConfigError(f"{where}.{key}={listed}: write a list of words, [{listed}]")
        if not isinstance(listed, list):
            continue
        if not listed:
            raise ConfigError(f"{where}.{key}=[]: list at least one word, such as [ngram]")
        for word in listed:
            if listed.count(word) > 1:
                raise ConfigError(f"{where}.{key}: {word} is listed twice; keep one")
            yield _member(where, key, str(word), values, _axis(where, key, str(word), axes, loader))


def _axis(
    where: str, key: str, word: str, axes: Sequence[str], loader: ConfigLoader
) -> tuple[str, dict[str, Any]]:
    """The axis of a listed word, and the fields of its YAML."""
    known = {axis: options(loader, axis) for axis in axes}
    for axis in axes:
        if word in known[axis]:
            return axis, schema(loader, axis, word)
    every = [option for axis in axes for option in known[axis]]
    raise ConfigError(no_such_option(f"{where}.{key}", word, every, {}))


def _member(
    where: str, key: str, word: str, values: Mapping[str, Any], found: tuple[str, dict[str, Any]]
) -> Member:
    axis, fields = found
    given = values.get(word) or {}
    if not isinstance(given, dict):
        raise ConfigError(f"{where}.{word}={given}: write its keys, such as {where}.{word}.name")
    return Member(f"{where}.{word}", axis, word, fields | given)


def check_keys(where: str, label: str, values: Mapping[str, Any], loader: ConfigLoader) -> set[str]:
    """The keys of `values` that are words of members, after a look at what is under them.

    label: `axis=option` of these values. Raises ConfigError for a key that a member does not have,
    and for the word of an option that is not listed.
    """
    found = list(members(where, values, loader)) if is_composite(values) else []
    for one in found:
        fields = schema(loader, one.axis, one.word)
        own = check_keys(one.where, f"{one.axis}={one.word}", one.values, loader)
        for key in one.values:
            if key not in fields and key not in own:
                raise ConfigError(no_such_field(one.where, one.word, key, _fields(fields)))
        if one.values.get("name") != fields.get("name"):
            raise ConfigError(f"{one.where}.name is fixed to {fields.get('name')!r}; leave it out")
    listed = {one.word for one in found}
    for key, held in values.items():
        if found and isinstance(held, dict) and key not in listed and _is_option(key, loader):
            raise ConfigError(
                f"{where}.{key}: {label} does not use {key}, it uses {', '.join(sorted(listed))}; "
                f"list it first: {_list_key(where, values)}=[...,{key}]"
            )
    return listed


def _fields(fields: Mapping[str, Any]) -> list[str]:
    return [field for field in fields if field != "name"]


def _is_option(word: str, loader: ConfigLoader) -> bool:
    axes = {axis for one in LISTS.values() for axis in one} & set(groups(loader))
    return any(word in options(loader, axis) for axis in axes)


def _list_key(where: str, values: Mapping[str, Any]) -> str:
    return next(f"{where}.{key}" for key in LISTS if isinstance(values.get(key), list))
