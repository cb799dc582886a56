"""Binds plain values to a constructor: its typed signature is the schema.

These types are understood: bool, int, float, str, None, Any, Path, Literal, unions, list[...],
tuple[...], dict[...] and any of them inside `Annotated[..., Range(low, high)]`. A value is never
guessed: 6.0 is no integer and "6" no number. Nothing is constructed here.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from specframe.errors import ConfigError, did_you_mean, no_such_field
from specframe.registry import Range

MISSING = "???"  # stands in YAML for a value that the user must give
NAMES: dict[Any, str] = {  # what messages call a type
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "string",
    list: "list",
    tuple: "list",
    dict: "mapping",
    types.NoneType: "null",
    Path: "path",
}


class _IllTyped(ConfigError):
    """The value has another type; another member of a union may still accept it."""


def bind(
    target: Callable[..., Any],
    values: Mapping[str, Any],
    *,
    where: str,
    injected: Collection[str] = (),
) -> dict[str, Any]:
    """Check `values` against the signature of `target` and return its keyword arguments.

    where: the key that the values stand under, such as "tree"; "" at the top. injected: parameters
    that the caller supplies, so that the user may not give them. A `name` that is no parameter is
    dropped; messages use it ("tree=chain"). Raises ConfigError that names key, value and fix.
    """
    given = dict(values)
    accepted = _parameters(target)
    open_ended = accepted.pop("**", None) is not None
    label = where or "the configuration"
    if "name" not in accepted and "name" in given:
        label = f"{where}={given.pop('name')}"
    fields = [key for key in accepted if key not in injected]
    for key in given:
        if key in injected or (key not in accepted and not open_ended):
            raise ConfigError(no_such_field(where, label, key, fields))
    bound = {}
    for key, parameter in accepted.items():
        if key in injected:
            continue
        if key in given and given[key] != MISSING:
            annotation = _annotation(target, parameter)
            bound[key] = _convert(annotation, given[key], _join(where, key))
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{_join(where, key)}: no value given; {label} needs it")
    return bound | {key: value for key, value in given.items() if key not in accepted}


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _function(target: Callable[..., Any]) -> Any:
    return target.__init__ if isinstance(target, type) else target  # type: ignore[misc]


def _parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Parameters by name; that of `**kwargs` stands under "**"."""
    parameters = {}
    for parameter in inspect.signature(target).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            parameters["**"] = parameter
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            parameters[parameter.name] = parameter
    return parameters


def _annotation(target: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The resolved annotation of this parameter alone; others may name types not imported here."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    scope = getattr(_function(target), "__globals__", {})
    return get_type_hints(holder, globalns=scope, include_extras=True)["it"]


def _convert(annotation: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if origin is Annotated:
        return _within(args, value, path)
    if origin in (Union, types.UnionType):
        return _any_of(args, value, path)
    if origin is Literal:
        return _one_of(args, value, path)
    kind = origin or annotation
    if kind in (list, tuple, Sequence):
        return _items(annotation, value, path)
    if kind in (dict, Mapping):
        return _mapping(annotation, value, path)
    return _scalar(annotation, value, path)


def _scalar(annotation: Any, value: Any, path: str) -> Any:
    if annotation is float and type(value) is int:
        return float(value)
    if annotation is Path and isinstance(value, str):
        return Path(value)
    if annotation in (bool, int, float, str, types.NoneType, None):
        if type(value) is not (annotation or types.NoneType):
            raise _ill_typed(annotation, value, path)
    elif isinstance(annotation, type) and not isinstance(value, annotation):
        raise _ill_typed(annotation, value, path)
    return value


def _within(args: tuple[Any, ...], value: Any, path: str) -> Any:
    converted = _convert(args[0], value, path)
    for extra in args[1:]:
        if isinstance(extra, Range) and converted is not None and converted not in extra:
            hint = f"; {extra.hint}" if extra.hint else ""
            raise ConfigError(f"{path}={value} is out of range; allowed {extra}{hint}")
    return converted


def _any_of(members: tuple[Any, ...], value: Any, path: str) -> Any:
    # An exact match first, so that `float | int` leaves an integer as it is.
    for member in sorted(members, key=lambda member: member is not type(value)):
        try:
            return _convert(member, value, path)
        except _IllTyped:
            continue
    raise _ill_typed(Union[members], value, path)


def _one_of(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    for choice in choices:
        if choice == value and type(choice) is type(value):
            return choice
    known = [str(choice) for choice in choices]
    near = did_you_mean(str(value), known)
    raise _IllTyped(f"{path}={value}: expected one of {', '.join(known)}.{near}")


def _items(annotation: Any, value: Any, path: str) -> Any:
    if not isinstance(value, list | tuple):
        raise _ill_typed(annotation, value, path)
    args = get_args(annotation)
    is_tuple = (get_origin(annotation) or annotation) is tuple
    if is_tuple and args and args[-1] is not Ellipsis:
        if len(args) != len(value):
            raise ConfigError(f"{path}={value}: expected {len(args)} items, got {len(value)}")
        kinds = list(args)
    else:
        kinds = [args[0] if args else Any] * len(value)
    pairs = enumerate(zip(kinds, value, strict=True))
    items = [_convert(kind, item, f"{path}[{i}]") for i, (kind, item) in pairs]
    return tuple(items) if is_tuple else items


def _mapping(annotation: Any, value: Any, path: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _ill_typed(annotation, value, path)
    key_kind, item_kind = get_args(annotation) or (Any, Any)
    return {
        _convert(key_kind, key, f"{path} (key)"): _convert(item_kind, item, _join(path, str(key)))
        for key, item in value.items()
    }


def _ill_typed(annotation: Any, value: Any, path: str) -> _IllTyped:
    text = f"{path}={value}: expected {_name(annotation)}, got {value!r} ({type(value).__name__})"
    optional = types.NoneType in get_args(annotation)
    if optional and isinstance(value, str) and value.lower() == "none":
        text += f"; for nothing write {path}=null"
    elif annotation is str and value is not None:
        text += f"; to keep it as text quote it twice: '{path}=\"{value}\"'"
    return _IllTyped(text)


def _name(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _name(args[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_name(member) for member in args)
    if origin is Literal:
        return ", ".join(str(choice) for choice in args)
    if origin in (list, tuple, Sequence) and args:
        return f"list of {_name(args[0])}"
    kind = origin or annotation
    return NAMES.get(kind, getattr(kind, "__name__", str(kind)))
