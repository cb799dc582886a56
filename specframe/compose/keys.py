"""The keys that the YAML files list: a composed config may hold no others.

Read from the files alone, so a misspelt key is answered before anything heavy is imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.compose.binding import no_such_field
from specframe.compose.catalogue import (
    CONFIG_NAME,
    default_choices,
    groups,
    option_files,
    options,
    schema,
)
from specframe.compose.members import check_keys
from specframe.errors import ConfigError
from specframe.plugins import bootstrap
from specframe.registry import no_such_option


def check(
    cfg: DictConfig, *, choices: Mapping[str, Any], words: Sequence[str], loader: ConfigLoader
) -> None:
    """Checks the keys of a composed config against those that the YAML files list.

    choices: Hydra's option by group. Raises ConfigError for a key that was appended, in an
    experiment or with '+', and is read by nobody; for a changed `name`; for an ambiguous option.
    """
    content = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(content, dict)
    known = schema(loader, "", CONFIG_NAME)
    known.pop("hydra", None)
    axes = groups(loader)
    for axis, default in default_choices(loader).items():
        if default is not None and axis not in content:
            raise ConfigError(no_such_option(axis, "null", options(loader, axis), {}))
    for key, value in content.items():
        option = choices.get(str(key))
        if key in axes and option is not None:
            _check_option(str(key), str(option), value, loader)
        elif key not in known and key not in axes:
            raise ConfigError(unknown_at_top(str(key), known | dict.fromkeys(axes), content))
        elif isinstance(value, dict) and isinstance(known.get(key), dict):
            _check_fields(str(key), str(key), value, list(known[key]))
    _check_unambiguous(words, loader)


def _check_option(axis: str, option: str, value: Any, loader: ConfigLoader) -> None:
    fields = schema(loader, axis, option)
    if not isinstance(value, dict):
        raise ConfigError(f"{axis}={value}: expected one of {', '.join(options(loader, axis))}")
    nested = check_keys(axis, f"{axis}={option}", value, loader) if axis == "drafter" else set()
    for key in value:
        if fields and key not in fields and key not in nested:
            raise ConfigError(unknown_in_option(axis, option, str(key), loader))
    if "name" in fields and value.get("name") != fields["name"]:
        raise ConfigError(
            f"{axis}.name is fixed to {fields['name']!r} by {axis}={option}; "
            f"choose with {axis}={value.get('name')}"
        )


def _check_fields(where: str, label: str, given: Mapping[Any, Any], fields: list[str]) -> None:
    for key in given:
        if key not in fields:
            raise ConfigError(no_such_field(where, label, str(key), fields))


def _check_unambiguous(words: Sequence[str], loader: ConfigLoader) -> None:
    axes = groups(loader)
    confs = [plugin.conf for plugin in bootstrap().plugins if plugin.conf is not None]
    for word in words:
        axis, _, option = word.partition("=")
        files = option_files(loader, axis, option) if axis in axes else []
        if len(files) > 1 and any(conf in file.parents for conf in confs for file in files):
            places = " and ".join(map(str, files))
            raise ConfigError(f"{word}: defined twice, in {places}; rename the plugin's")


def unknown_at_top(key: str, known: Mapping[str, Any], content: Mapping[Any, Any]) -> str:
    """A wrong key at the top; the right one may be a field of a component."""
    homes = {str(name): str(name) for name in known}
    for group, fields in content.items():
        for field in fields if isinstance(fields, dict) else ():
            homes.setdefault(str(field), f"{group}.{field}")
    near = difflib.get_close_matches(key, homes, n=1)
    hint = f" Did you mean {homes[near[0]]!r}?" if near else ""
    return f"{key}: no such key; there are {', '.join(sorted(known))}.{hint}"


def unknown_in_option(axis: str, option: str, key: str, loader: ConfigLoader) -> str:
    """A wrong field of a component, and the sibling option that does have it, if any."""
    fields = [field for field in schema(loader, axis, option) if field != "name"]
    text = no_such_field(axis, f"{axis}={option}", key, fields)
    owners = [
        f"{axis}={other}"
        for other in options(loader, axis)
        if other != option and key in _fields(loader, axis, other)
    ]
    if owners and "Did you mean" not in text:
        text += f" ({key!r} is a field of {', '.join(owners)})"
    return text


def _fields(loader: ConfigLoader, axis: str, option: str) -> dict[str, Any]:
    """The fields of a sibling; one whose file is broken must not spoil another's message."""
    try:
        return schema(loader, axis, option)
    except (yaml.YAMLError, OmegaConfBaseException):
        return {}
