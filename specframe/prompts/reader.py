"""Prompt files: JSON with `prompt`, `turns` or `messages`, or plain text with one prompt a line."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.prompts.prompt_entries import json_entries, text_entries
from specframe.session.prompt_encoding import check_text

BUILTIN = "builtin"  # names the built-in set in the place of a file
_BUILTIN_FILE = Path(__file__).with_name("builtin.jsonl")
_ID_KEYS = ("id", "question_id", "task_id")  # ours, Spec-Bench's and EAGLE's, HumanEval's
_ROLES = ("system", "developer", "user", "assistant", "tool")
_SHAPES = "`prompt` (text), `turns` (list of texts) or `messages` (list of role and content)"


@dataclass(frozen=True, kw_only=True)
class PromptRecord:
    """One prompt of a file."""

    turns: tuple[str, ...]  # the user's texts, several in a conversation
    # (role, content) of the messages that stand before the first of `turns`, as given.
    before: tuple[tuple[str, str], ...] = ()
    id: str | int | None = None
    category: str | None = None
    source: str | None = None  # the collection that it is from
    license: str | None = None  # of that collection, by its SPDX name
    reference: str | None = None  # the right answer to the first turn, in the suite's own words
    # A program that raises unless the function that the answer completes is right (HumanEval).
    checks: str | None = None

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that stand for the texts of the prompt."""
        texts = [self.before, self.turns] if self.before else self.turns
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def read_prompts(path: Path | str) -> list[PromptRecord]:
    """The prompts of a file, in order; `builtin` is the built-in set.

    `-` is standard input. A `.jsonl` file has one object a line, a `.json` file a list of objects
    or texts. An object has `prompt` (text), `turns` (list of texts) or `messages` (the last one the
    user's), and maybe `id` (or `question_id`, `task_id`), `category`, `source`, `license`,
    `reference` (the right answer, or a list) and HumanEval's `test` and `entry_point`; other keys
    are ignored. Any other file is text with one prompt a line. Blank lines are skipped. Raises
    ConfigError naming the path, and the place where one is wrong.
    """
    file = _BUILTIN_FILE if str(path) == BUILTIN else path
    lines = text_entries(file)
    if lines is not None:
        records = [PromptRecord(turns=(line,)) for _, line in lines]
    else:
        records = [_record(entry, where) for where, entry in json_entries(file)]
    if not records:
        raise ConfigError(f"prompts={path}: the file holds no prompt")
    return records


def first_prompt() -> PromptRecord:
    """The prompt of a run that names none: a summarization, whose answer copies from it."""
    return next(record for record in read_prompts(BUILTIN) if record.id == "summarization-1")


def _record(entry: Any, where: str) -> PromptRecord:
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected an object with {_SHAPES}")
    named = {key: entry.get(key) for key in ("category", "source", "license")}
    before, turns = _texts(entry, where)
    for text in (*turns, *(content for _, content in before)):
        check_text(text, where)
    return PromptRecord(
        turns=turns,
        before=before,
        id=_id(entry, where),
        reference=_reference(entry),
        checks=_checks(entry),
        **{key: None if value is None else str(value) for key, value in named.items()},
    )


def _id(entry: dict[str, Any], where: str) -> str | int | None:
    key, value = next(
        ((key, entry[key]) for key in _ID_KEYS if entry.get(key) is not None), ("id", None)
    )
    if isinstance(value, float):
        return str(value)
    if value is not None and not isinstance(value, str | int):
        raise ConfigError(f"{where}: `{key}` must be text or a number")
    return value


def _reference(entry: dict[str, Any]) -> str | None:
    """The right answer to the first turn, if it is text."""
    reference = entry.get("reference")
    first = reference[0] if isinstance(reference, list) and reference else reference
    return first if isinstance(first, str) and first else None


def _checks(entry: dict[str, Any]) -> str | None:
    """HumanEval's tests with the call that runs them on the function that the entry names."""
    if not all(isinstance(entry.get(key), str) for key in ("test", "entry_point")):
        return None
    return f"{entry['test']}\n\ncheck({entry['entry_point']})\n"


def _texts(
    entry: dict[str, Any], where: str
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The messages that are given, and the user's turns that are to be answered."""
    keys = [key for key in ("prompt", "turns", "messages") if key in entry]
    if not keys:
        has = ", ".join(sorted(map(str, entry))) or "none"
        raise ConfigError(f"{where}: needs {_SHAPES}; it has {has}")
    if len(keys) > 1:
        raise ConfigError(f"{where}: has both `{keys[0]}` and `{keys[1]}`; keep one")
    if keys == ["messages"]:
        *before, (_, last) = _messages(entry["messages"], where)
        return tuple(before), (last,)
    turns = [entry["prompt"]] if keys == ["prompt"] else entry["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ConfigError(f"{where}: `prompt` must be text, `turns` a list of texts")
    return (), tuple(turns)


def _messages(listed: Any, where: str) -> list[tuple[str, str]]:
    """(role, content) of each message; the last one is the user's. Raises ConfigError."""
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{where}: `messages` must be a list of objects with role and content")
    for number, each in enumerate(listed, start=1):
        if not isinstance(each, dict) or each.get("role") not in _ROLES:
            raise ConfigError(f"{where}: message {number} needs a role: {', '.join(_ROLES)}")
        if not isinstance(each.get("content"), str):
            raise ConfigError(f"{where}: message {number} needs `content`, a text")
    if listed[-1]["role"] != "user":
        raise ConfigError(f"{where}: the last message must be the user's, which is answered")
    return [(each["role"], each["content"]) for each in listed]
