"""The errors that the command line turns into one line instead of a traceback."""

from __future__ import annotations


class ConfigError(ValueError):
    """A mistake of the user in a word, a key, a value or a file; names it and the fix."""


class NoHead(ConfigError):
    """No trained head ships for this drafter and target; a comparison goes on without it."""


class IncompatibleComponents(ValueError):
    """Words that are right alone and wrong together; says why and what to use instead."""


class MissingResource(RuntimeError):
    """Something outside of the configuration is missing: weights, a network, an extra."""
