"""Explains in one line what is wrong with the words of a command.

It is asked when Hydra refuses them. It reads the YAML files alone and imports no component, so that
a misspelt word is answered at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import hydra
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.compose.catalogue import (
    CONFIG_NAME,
    check_named,
    configuration,
    default_choices,
    groups,
    options,
    schema,
)
from specframe.compose.key_check import check_keys
from specframe.errors import ConfigError, no_such_option
from specframe.plugins import bootstrap

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)


def explain(
    exc: Exception, words: Sequence[str], *, multirun: bool = False, config_dirs: Sequence[str] = ()
) -> str:
    """One line for an error of Hydra on these words: what is wrong with them, else Hydra's text."""
    problem = first_problem(words, multirun=multirun, config_dirs=config_dirs)
    if problem is not None:
        return problem
    causes = [exc, exc.__cause__]
    return " ".join(" ".join(str(cause).split()) for cause in causes if cause is not None)


def first_problem(
    words: Sequence[str], *, multirun: bool, config_dirs: Sequence[str] = ()
) -> str | None:
    """One line for the first thing that is wrong with these words, None if nothing is."""
    try:
        with configuration(config_dirs) as loader:
            return next(_problems(words, multirun, loader), None)
    except ConfigError as error:  # a file that cannot be read
        return str(error)
    except (*COMPOSITION_ERRORS, UnicodeDecodeError):
        return None  # it is something rarer, and Hydra's text has to do


def repeated(words: Sequence[str], config_dirs: Sequence[str] = ()) -> str | None:
    """One line for an axis that is chosen twice; Hydra would silently take the last choice."""
    keys = [word.partition("=")[0] for word in words if "=" in word]
    twice = [key for key in dict.fromkeys(keys) if keys.count(key) > 1 and "." not in key]
    if not twice:
        return None
    with configuration(config_dirs) as loader:
        axes = groups(loader)
    for key in twice:
        if key in axes:
            given = ", ".join(word for word in words if word.startswith(f"{key}="))
            return f"{key} is given {keys.count(key)} times ({given}); keep one"
    return None


def _problems(words: Sequence[str], multirun: bool, loader: ConfigLoader) -> Iterator[str]:
    """What is wrong, the most basic first: grammar, sweeps without -m, options, keys."""
    parser = OverridesParser.create(config_loader=loader)
    parsed: list[Override] = []
    for word in words:
        try:
            parsed.append(parser.parse_override(word))
        except HydraException:
            yield _bad_grammar(word)
            return
    for override in parsed:
        if override.is_sweep_override() and not multirun:
            yield _unasked_sweep(override, loader)
    yield from _bad_options(parsed, loader)
    yield from _bad_keys(parsed, loader)


def _bad_grammar(word: str) -> str:
    key, equals, value = word.partition("=")
    if not equals:
        return f"{word}: a word is written key=value, such as drafter=ngram"
    return f"{key}: the value does not parse; {_how_to_quote(key, value)}"


def _unasked_sweep(override: Override, loader: ConfigLoader) -> str:
    word = str(override.input_line).removeprefix("++")
    key, _, value = word.partition("=")
    listed = "" if _is_choice(override, loader) else f", and {key}=[{value}] is a list"
    return f"{word}: several values are a sweep: add -m{listed}"


def _how_to_quote(key: str, value: str) -> str:
    # Hydra halves backslashes only before a quote. The outer quotes are the shell's.
    quoted = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), value)
    quoted = quoted.replace("'", "'\\''")
    entries = re.fullmatch(r"\[([^][\"']+)\]", value)
    if entries:
        quoted = ",".join(f'"{entry.strip()}"' for entry in entries[1].split(","))
        return f"quote each entry, and all of it for the shell: '{key}=[{quoted}]'"
    return f"quote it twice, for the shell and for Hydra: '{key}=\"{quoted}\"'"


def _is_choice(override: Override, loader: ConfigLoader) -> bool:
    group = override.key_or_group
    return group in groups(loader) or bool("/" in group and options(loader, group))


def swept(word: str) -> list[str]:
    """The words that a word of a sweep stands for; the word itself where it has one value.

    Raises ConfigError for bad grammar.
    """
    try:
        with configuration() as loader:
            override = OverridesParser.create(config_loader=loader).parse_override(word)
    except HydraException as error:
        raise ConfigError(_bad_grammar(word)) from error
    if not override.is_sweep_override():
        return [word]
    key = word.partition("=")[0]
    return [f"{key}={value}" for value in _values(override)]


def _values(override: Override) -> list[str]:
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    return [override.get_value_element_as_str()]


def _value(override: Override, turn: int = 0) -> str:
    """The value that a swept word has in this turn, the last one where it has no more."""
    return _values(override)[: turn + 1][-1]


def _bad_options(parsed: Sequence[Override], loader: ConfigLoader) -> Iterator[str]:
    for override in parsed:
        group = override.key_or_group
        if override.is_delete() or not _is_choice(override, loader):
            continue
        known = options(loader, group)
        optional = default_choices(loader).get(group) is None
        for value in _values(override):
            if value == "null" and optional:
                yield f"{group}=null: leave the word out for none"
            elif value not in known:
                # Only now does a broken plugin matter: it might have had this word.
                plugins = bootstrap()
                plugins.bring_all()
                yield no_such_option(group, value, known, plugins.failures())
            elif optional:
                schema(loader, group, value)  # an experiment, say, names no component
            else:
                check_named(loader, group, value)
        if override.is_add():
            yield f"{group} has an option already; write {group}={_values(override)[0]} without +"


def _bad_keys(parsed: Sequence[Override], loader: ConfigLoader) -> Iterator[str]:
    """Hydra refuses an unknown key before the check of keys could say what is wrong with it.

    So the choices are composed alone, the keys are added by force, and the check sees the result:
    once for each option of a swept axis.
    """
    chosen = [each for each in parsed if _is_choice(each, loader) and not each.is_delete()]
    keys = [each for each in parsed if not _is_choice(each, loader)]
    keys = [each for each in keys if each.key_or_group.split(".")[0] != "hydra"]
    for turn in range(max((len(_values(each)) for each in chosen), default=1)):
        words = [f"{each.get_key_element()}={_value(each, turn)}" for each in chosen]
        config = hydra.compose(CONFIG_NAME, overrides=words, return_hydra_config=True)
        choices = dict(config.hydra.runtime.choices)
        content = OmegaConf.to_container(config, resolve=False)
        for key in keys:
            problem = _misplaced(key, content)
            if problem is not None:
                yield problem
                return
            # Of a sweep one value is enough, since the check reads keys.
            value = _value(key) if key.is_sweep_override() else key.value()
            OmegaConf.update(config, key.key_or_group, value, force_add=True)
        try:
            check_keys(config, choices=choices, loader=loader)
        except ConfigError as wrong:
            yield str(wrong)


def _misplaced(key: Override, content: Any) -> str | None:
    """One line for a key below a plain value, or for one that is added although it is there."""
    path = key.key_or_group.split(".")
    for depth, name in enumerate(path):
        if not isinstance(content, dict):
            above = ".".join(path[:depth])
            added = key.is_add() or key.is_force_add()
            return None if added else f"{key.key_or_group}: {above} is a value, it has no fields"
        if name not in content:
            return None
        content = content[name]
    word = str(key.input_line).lstrip("+")
    return f"{key.key_or_group} is there already; write {word} without +" if key.is_add() else None
