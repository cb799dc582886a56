"""Classes that a user names as `module:Class`: checked to be of the right kind before any call."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from specframe.errors import ConfigError, describe_error


def user_class(path: str, *, where: str, base: str) -> type:
    """The class at `module:Class`, to be made without arguments and called with (ids, scores).

    base: the class of transformers whose contract it fulfils, as its own code or by inheritance.
    The module is imported, but nothing of it is called. Raises ConfigError naming `where`.
    """
    module, _, name = path.partition(":")
    try:
        thing = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module's own code may raise anything
        text = f"{where}={path}: cannot import it ({describe_error(error)}); give module:Class"
        raise ConfigError(text) from error
    if not isinstance(thing, type):
        kind = type(thing).__name__
        raise ConfigError(f"{where}={path}: it is a {kind}, not a class; {_wanted(base)}")
    if not _takes(_own_call(thing, base), 3):  # self, ids, scores
        raise ConfigError(f"{where}={path}: its objects cannot be called so; {_wanted(base)}")
    if not _takes(thing, 0):
        raise ConfigError(
            f"{where}={path}: it cannot be made without arguments; give a class of your own that "
            "sets them"
        )
    return thing


def user_object(path: str, *, where: str, base: str) -> Any:
    """An object of the class at `module:Class`. Raises ConfigError, see `user_class`."""
    made = user_class(path, where=where, base=base)
    try:
        return made()
    except Exception as error:
        text = f"{where}={path}: it cannot be made ({describe_error(error)}); mend its __init__"
        raise ConfigError(text) from error


def _wanted(base: str) -> str:
    return f"give a class derived from transformers' {base}, or one with __call__(ids, scores)"


def _own_call(cls: type, base: str) -> Any:
    """`__call__` as the class or one of its bases defines it: that of `type` makes objects, and
    that of transformers' base class only raises."""
    own = [each for each in cls.__mro__ if each.__name__ != base and "__call__" in vars(each)]
    return vars(own[0])["__call__"] if own else None


def _takes(function: Any, count: int) -> bool:
    """Whether it can be called with so many arguments by position."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):  # ValueError: written in C, without a signature
        return False
    return True
