"""The entries of a prompt file, each with its place: lines of text, or values of JSON.

A file is JSON by its ending, standard input (`-`) by its first character.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from specframe.errors import ConfigError

STANDARD_INPUT = "-"  # in the place of a file
_ENDINGS = (".jsonl", ".ndjson", ".json")
_NOT_JSON = (ValueError, RecursionError)  # RecursionError: nested too deeply


def text_entries(path: Path | str) -> Iterator[tuple[str, str]] | None:
    """(place, line) of each line that is not blank; None where the file is JSON.

    Raises ConfigError naming the path if it cannot be read.
    """
    text = _text(path)
    if _is_json(path, text):
        return None
    return ((f"{path}:{number}", line) for number, line in _lines(text))


def json_entries(path: Path | str) -> Iterator[tuple[str, Any]]:
    """(place, value) of each line, or of each item of a file that is one JSON array or object.

    Raises ConfigError naming the line that is not JSON.
    """
    text = _text(path)
    whole = _whole(text) if not str(path).endswith(_ENDINGS[:2]) else None
    if whole is not None:
        for number, value in enumerate(whole, start=1):
            yield f"{path}[{number}]", value
        return
    for number, line in _lines(text):
        yield f"{path}:{number}", _value(line, f"{path}:{number}")


def _is_json(path: Path | str, text: str) -> bool:
    if str(path) == STANDARD_INPUT:
        return text.lstrip().startswith(("{", "[{", '["'))
    return Path(path).suffix.lower() in _ENDINGS


def _whole(text: str) -> list[Any] | None:
    """The items of a text that is one JSON array, or one object over several lines."""
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        value = json.loads(text)
    except _NOT_JSON:
        return None  # the line that is wrong will be named
    return value if isinstance(value, list) else [value]


def _value(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise ConfigError(f"{where}: not JSON that can be read, it is nested too deeply") from None
    except ValueError as error:  # such as a number of 5,000 digits
        raise ConfigError(f"{where}: not JSON that can be read ({error})") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Number (from 1) and content of each line that is not blank."""
    # Not splitlines: U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.rstrip("\r")


def _text(path: Path | str) -> str:
    """The content of a file, or of standard input. Raises ConfigError."""
    try:
        if str(path) == STANDARD_INPUT:
            return _all_of(sys.stdin)
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"prompts={path}: no such file; give a .jsonl or text file, - (standard input), or "
            "prompts=builtin"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"prompts={path}: cannot read it ({reason})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompts={path}: not UTF-8 (byte {error.start})") from None


@lru_cache(maxsize=1)
def _all_of(stream: TextIO | None) -> str:
    """All of standard input, read once: a run looks at its prompts more than once."""
    if stream is None:
        raise ConfigError(f"prompts={STANDARD_INPUT}: this process has no standard input")
    buffer = getattr(stream, "buffer", None)
    return stream.read() if buffer is None else buffer.read().decode("utf-8-sig")
