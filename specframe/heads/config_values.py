"""Values of a head's config.json, checked before anything is made from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specframe.errors import ConfigError


def whole(config: Mapping[str, Any], key: str, place: str) -> int | None:
    """A positive whole number, None where the key is absent or null. Raises ConfigError."""
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _refused(key, value, place, "a positive whole number")
    return value


def positive(config: Mapping[str, Any], key: str, place: str) -> float | None:
    """A positive number, None where the key is absent or null. Raises ConfigError."""
    value = config.get(key)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise _refused(key, value, place, "a positive number")
    return float(value)


def needed(config: Mapping[str, Any], key: str, place: str) -> float:
    """The same where the key must be there."""
    value = positive(config, key, place)
    if value is None:
        raise ConfigError(f"{place}: config.json lacks {key}; expected a positive number")
    return value


def section(config: Mapping[str, Any], key: str, place: str) -> Mapping[str, Any]:
    """A mapping, empty where the key is absent or null. Raises ConfigError."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise _refused(key, value, place, "a mapping")
    return value or {}


def blocks(config: Mapping[str, Any], key: str, place: str) -> tuple[int, ...] | None:
    """Numbers of blocks, None where the list is absent or empty. Raises ConfigError."""
    value = config.get(key)
    if not value:
        return None
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise _refused(key, value, place, "a list of block numbers")
    return tuple(value)


def agree(config: Mapping[str, Any], place: str, **sizes: int) -> None:
    """Raises ConfigError where the configuration has another size than the weights.

    sizes: by key, as the shapes of the weights show them; 0 where they do not. Keys that are absent
    say nothing.
    """
    for key, size in sizes.items():
        said = whole(config, key, place)
        if size and said is not None and said != size:
            raise ConfigError(
                f"{place}: config.json has {key}={said}, the weights have {size}; they are of two "
                "heads, or one of them was changed"
            )


def _refused(key: str, value: Any, place: str, kind: str) -> ConfigError:
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return ConfigError(f"{place}: config.json has {key}={shown}; expected {kind}")
