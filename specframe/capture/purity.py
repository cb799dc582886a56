"""Which policies and rules a captured function may stand for."""

from __future__ import annotations

from typing import TypeVar

C = TypeVar("C", bound=type)

_PURE: set[type] = set()


def pure(cls: C) -> C:
    """Class decorator: the verb of this policy or rule (`grow`, `decide`) reads nothing but its
    arguments and its own numbers, no value on the host, and leaves nothing behind.

    It holds for the very class; a subclass may do more, and says so anew.
    """
    _PURE.add(cls)
    return cls


def is_pure(component: object) -> bool:
    """Whether the very class of a component is `pure`."""
    return type(component) in _PURE
