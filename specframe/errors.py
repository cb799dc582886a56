"""The errors that the command line turns into one line, and the sentences for unknown words."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping


class ConfigError(ValueError):
    """A mistake of the user in a word, a key, a value or a file; names it and the fix."""


class NoHead(ConfigError):
    """No trained head ships for this drafter and target; a comparison goes on without it."""


class IncompatibleComponents(ValueError):
    """Words that are right alone and wrong together; says why and what to use instead."""


class MissingResource(RuntimeError):
    """Something outside of the configuration is missing: weights, a network, an extra."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The sentence " Did you mean 'x'?", or "" where nothing is near."""
    near = difflib.get_close_matches(word, list(options), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def no_such_option(
    axis: str, word: str, options: Iterable[str], failures: Mapping[str, BaseException]
) -> str:
    """The one line for an unknown word: the options, the near match, plugins that failed."""
    known = sorted(options)
    text = f"{axis}={word}: no such option. Available: {', '.join(known) or 'none'}."
    text += did_you_mean(word, known)
    for plugin, exc in sorted(failures.items()):
        text += f" Plugin not loaded: {plugin}: {describe_error(exc)}."
    return text


def describe_error(exc: BaseException) -> str:
    """`Type: message` on one line."""
    return f"{type(exc).__name__}: {' '.join(str(exc).split())}".rstrip(": .")


def no_such_field(where: str, label: str, key: str, fields: Collection[str]) -> str:
    """The one line for an unknown key: the accepted ones and the near match."""
    place = f"{where}.{key}" if where else key
    has = ", ".join(fields) or "none"
    near = did_you_mean(key, fields)
    return f"{place}: {label} has no field {key!r}; it has {has}.{near}"
