"""The errors that the command line turns into one line, and sentences that several places use."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager


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


@contextmanager
def user_errors(where: str = "") -> Iterator[None]:
    """Turn a constructor's ValueError into a ConfigError that begins with the key `where`."""
    try:
        yield
    except (ConfigError, IncompatibleComponents, MissingResource):
        raise
    except ValueError as error:
        text = str(error)
        named = not where or text.startswith(where)
        raise ConfigError(text if named else f"{where}: {text}") from error


@contextmanager
def inside(where: str) -> Iterator[None]:
    """Begin the error of an option inside an option with its place, such as `drafter.ngram`."""
    try:
        yield
    except (ConfigError, IncompatibleComponents, MissingResource) as error:
        if "." not in where or str(error).startswith(where):
            raise
        raise type(error)(f"{where}: {error}") from error
