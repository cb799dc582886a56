"""The ranges of what a caller may give: the same for the Python API and for the YAML files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from specframe.errors import ConfigError
from specframe.records import Observer
from specframe.registry import Range

P = ParamSpec("P")
T = TypeVar("T")

MOST_NEW_TOKENS = 1_000_000
MaxNewTokens = Annotated[int, Range(1, MOST_NEW_TOKENS)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
BatchSize = Annotated[int, Range(1, 256)]
SequenceNumber = Annotated[int, Range(0, 2**63 - 1)]  # of a prompt; it keys the noise

_NAMES: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false"}


def bound(verb: Callable[P, T]) -> Callable[P, T]:
    """Decorator: integers, ranges and flags of the arguments are checked against the annotations.

    The others are left to the function. A call that raises has done nothing: ConfigError names the
    argument, the value and what is allowed.
    """
    parameters = signature(verb)
    hints = get_type_hints(verb, include_extras=True)

    @wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            given = parameters.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ConfigError(f"{verb.__name__}{parameters}: {error}") from None
        check_arguments(hints, given)
        return verb(*args, **kwargs)

    return run


def check_arguments(hints: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check values against type hints. Raises ConfigError for the first that does not fit."""
    for name, value in given.items():
        hint = hints.get(name)
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if value is None and NoneType in members:
            continue
        if get_origin(hint) is Sequence and not isinstance(value, Sequence):
            raise ConfigError(f"{name}: expected a list, got {value!r} ({type(value).__name__})")
        if get_args(hint) == (Observer,):
            for place, item in enumerate(value):
                if not callable(getattr(item, "observe", None)):
                    raise ConfigError(f"{name}[{place}]: {item!r} has no method `observe`")
        for member in members:
            _check(name, member, value)


def _check(name: str, hint: Any, value: Any) -> None:
    kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if kind not in _NAMES:
        return
    if type(value) is not kind and not (kind is float and type(value) is int):
        got = f"{value!r} ({type(value).__name__})"
        raise ConfigError(f"{name}={value}: expected {_NAMES[kind]}, got {got}")
    for extra in extras:
        if isinstance(extra, Range) and value not in extra:
            raise ConfigError(f"{name}={value} is out of range; allowed {extra}")
