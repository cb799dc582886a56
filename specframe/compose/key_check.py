"""The check of keys: a configuration holds only keys that its YAML files list.

It reads YAML files alone, so that a misspelt key is answered before anything heavy is imported.
That the values fit the constructors is checked later, in `binding`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.compose.catalogue import (
    CONFIG_NAME,
    check_named,
    default_choices,
    groups,
    option_files,
    options,
    schema,
)
from specframe.compose.nested_options import LISTS, Option, list_key, nested_options
from specframe.errors import ConfigError, no_such_field, no_such_option
from specframe.plugins import bootstrap


def check_keys(config: DictConfig, *, choices: Mapping[str, Any], loader: ConfigLoader) -> None:
    """Check every key of a composed configuration against the YAML files.

    choices: the option that Hydra chose for each group. Raises ConfigError for a key that no YAML
    file lists, whether a word or an experiment brought it; for a `name` that was changed; and for
    an axis that was left without an option.
    """
    content: Any = OmegaConf.to_container(config, resolve=False)
    known = schema(loader, "", CONFIG_NAME)
    for part in (content, known):
        part.pop("hydra", None)
    axes = groups(loader)
    for axis, default in default_choices(loader).items():
        if default is not None and axis not in content:
            raise ConfigError(no_such_option(axis, "null", options(loader, axis), {}))
    for key, value in content.items():
        word = choices.get(key)
        if key == "tracker":
            raise ConfigError(_tracker_key(value))
        if key in axes and word is not None:
            check_named(loader, key, word)
            if not isinstance(value, dict):
                listed = ", ".join(options(loader, key))
                raise ConfigError(f"{key}={value}: expected one of {listed}")
            _check_option(Option(where=key, axis=key, word=word, values=value), loader)
        elif key not in known and key not in axes:
            raise ConfigError(_unknown_at_top(key, {**known, **dict.fromkeys(axes)}, content))
        elif isinstance(value, dict) and isinstance(known.get(key), dict):
            for field in value:
                if field not in known[key]:
                    raise ConfigError(no_such_field(key, key, field, list(known[key])))


def check_unambiguous(words: Sequence[str], loader: ConfigLoader) -> None:
    """Raises ConfigError for a chosen option that a plugin defines a second time."""
    axes = groups(loader)
    confs = [plugin.conf for plugin in bootstrap().plugins if plugin.conf is not None]
    for word in words:
        axis, _, option = word.partition("=")
        files = option_files(loader, axis, option) if axis in axes else []
        if len(files) > 1 and any(conf in file.parents for conf in confs for file in files):
            places = " and ".join(map(str, files))
            raise ConfigError(f"{word}: defined twice, in {places}; rename the plugin's")


def _check_option(option: Option, loader: ConfigLoader) -> None:
    """Check the keys of one option, and of the options that it lists."""
    fields = schema(loader, option.axis, option.word)
    nested = nested_options(option, loader)
    for inner in nested:
        _check_option(inner, loader)
    words = {inner.word for inner in nested}
    for key, value in option.values.items():
        if key in words:
            continue
        if nested and isinstance(value, dict) and _is_listable(key, loader):
            raise ConfigError(
                f"{option.where}.{key}: {option.label} does not use {key}, it uses "
                f"{', '.join(sorted(words))}; list it first: {list_key(option)}=[...,{key}]"
            )
        if fields and key not in fields:
            raise ConfigError(_unknown_in_option(option, key, loader))
    name = option.values.get("name")
    if "name" in fields and name != fields["name"]:
        text = f"{option.where}.name is fixed to {fields['name']!r}"
        if option.is_nested:
            raise ConfigError(f"{text}; leave it out")
        raise ConfigError(f"{text} by {option.label}; choose with {option.axis}={name}")


def _is_listable(word: str, loader: ConfigLoader) -> bool:
    """Whether a drafter could list an option of this word."""
    axes = {axis for listed in LISTS.values() for axis in listed} & set(groups(loader))
    return any(word in options(loader, axis) for axis in axes)


def _unknown_at_top(key: str, known: Mapping[str, Any], content: Mapping[Any, Any]) -> str:
    """The sentence for a wrong key at the top; the right one may be a field of a component."""
    homes = {str(name): str(name) for name in known}
    for group, fields in content.items():
        for field in fields if isinstance(fields, dict) else ():
            homes.setdefault(str(field), f"{group}.{field}")
    near = difflib.get_close_matches(key, homes, n=1)
    hint = f" Did you mean {homes[near[0]]!r}?" if near else ""
    return f"{key}: no such key; there are {', '.join(sorted(known))}.{hint}"


def _tracker_key(given: Any) -> str:
    """The sentence for `tracker.mlflow.uri=x`: a tracker is a callback of Hydra's."""
    path: list[str] = []
    while isinstance(given, dict) and given:
        key, given = next(iter(given.items()))
        path.append(str(key))
    place = ".".join(path if len(path) > 1 else ["WORD", *path])
    return (
        f"tracker.{'.'.join(path)}: the keys of a tracker stand under hydra.callbacks; write "
        f"hydra.callbacks.{place}={given}"
    )


def _unknown_in_option(option: Option, key: str, loader: ConfigLoader) -> str:
    """The sentence for a wrong field: the one that is near, else the options that do have it."""
    fields = [field for field in schema(loader, option.axis, option.word) if field != "name"]
    label = option.word if option.is_nested else option.label
    text = no_such_field(option.where, label, key, fields)
    if "Did you mean" in text:
        return text  # the files of the other options need not be read
    owners = [
        f"{option.axis}={other}"
        for other in options(loader, option.axis)
        if other != option.word and key in _fields(loader, option.axis, other)
    ]
    return f"{text} ({key!r} is a field of {', '.join(owners)})" if owners else text


def _fields(loader: ConfigLoader, axis: str, option: str) -> dict[str, Any]:
    """The fields of a sibling; one whose file is broken must not spoil another's message."""
    try:
        return schema(loader, axis, option)
    except (yaml.YAMLError, OmegaConfBaseException, ConfigError):
        return {}
