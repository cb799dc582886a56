"""What a user types, put so that Hydra reads it as it is meant.

A prompt is prose: its commas, quotes, braces and `${...}` mean nothing to Hydra. Stop strings and
banned words understand escapes, as `stop.strings=["\\n\\n"]`. Keys that no YAML file can list are
marked as additions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf

from specframe.compose.nested_options import with_nested_keys_added
from specframe.errors import ConfigError

_PROSE = re.compile(r"(\+{0,2}prompt)=(.*)", re.DOTALL)  # null alone still means no prompt
_ESCAPED_KEYS = re.compile(r"\+{0,2}(stop\.strings|sampling\.bad_words)=")
_ESCAPE = re.compile(r"\\(?:([ntr\\])|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def for_hydra(words: Sequence[str]) -> list[str]:
    """The words of a user in Hydra's grammar."""
    return with_nested_keys_added([_literal(word) for word in words])


def as_typed(overrides: Sequence[str]) -> list[str]:
    """The words for which `for_hydra` gives these overrides."""
    return [_typed(word) for word in overrides]


def check_encodable(words: Sequence[str]) -> None:
    """Raises ConfigError for a word that is not UTF-8: no file could hold it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            key, wrong = word.partition("=")[0], ascii(word[error.start])[1:-1]
            raise ConfigError(
                f"{ascii(key)[1:-1]}: not UTF-8, it has {wrong}; type it anew, or "
                "write it to a file"
            ) from None


def _literal(word: str) -> str:
    prose = _PROSE.fullmatch(word)
    if prose is not None and prose[2] != "null":
        return f"{prose[1]}={_quoted(prose[2])}"
    if _ESCAPED_KEYS.match(word):
        return _changed_strings(word, _unescaped)
    return word


def _typed(word: str) -> str:
    if _PROSE.fullmatch(word):
        override = OverridesParser.create().parse_override(word)
        value = OmegaConf.to_container(OmegaConf.create({"it": override.value()}), resolve=True)
        text = value["it"] if isinstance(value, dict) else None
        return f"{word.partition('=')[0]}={'null' if text is None else text}"
    if _ESCAPED_KEYS.match(word):
        return _changed_strings(word, lambda text: text.replace("\\", "\\\\"))
    return word


def _changed_strings(word: str, change: Callable[[str], str]) -> str:
    """A word with each of its strings changed, those of a sweep and of its lists too."""
    key, _, given = word.partition("=")
    try:
        value: Any = OverridesParser.create().parse_override(word).value()
    except HydraException:
        # One bare string, such as </s>; a list that does not parse is for Hydra to refuse.
        return word if given[:1] in ("[", '"', "'") else f"{key}={_quoted(change(given))}"
    if isinstance(value, ChoiceSweep):
        choices = value.list if value.simple_form else []
    else:
        choices = [value]
    pieces = [_piece(choice, change) for choice in choices]
    return word if None in pieces or not pieces else f"{key}={','.join(map(str, pieces))}"


def _piece(value: Any, change: Callable[[str], str]) -> str | None:
    """A string or a list of strings in Hydra's grammar; None for anything else."""
    if isinstance(value, list):
        pieces = [None if isinstance(each, list) else _piece(each, change) for each in value]
        return None if None in pieces else f"[{','.join(map(str, pieces))}]"
    text = value.text if isinstance(value, QuotedString) else value
    return _quoted(change(text)) if isinstance(text, str) else None


def _unescaped(text: str) -> str:
    """Escapes as in JSON, and \\xHH; a pair of surrogates is one character."""

    def character(escape: re.Match[str]) -> str:
        code = escape[2] or escape[3]
        return chr(int(code, 16)) if code else _LETTERS[escape[1]]

    changed = _ESCAPE.sub(character, text)
    return changed.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _quoted(text: str) -> str:
    """A string of Hydra's grammar that means exactly this text."""
    # Of a run of backslashes, Hydra halves only one before a quote, OmegaConf only one before ${.
    text = re.sub(r"(\\*)\$\{", lambda run: run[1] * 2 + r"\${", text)
    text = re.sub(r'(\\*)("|$)', lambda run: run[1] * 2 + ('\\"' if run[2] else ""), text)
    return f'"{text}"'
