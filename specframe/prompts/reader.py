"""Prompt files: JSONL with `prompt` or `turns`, or plain text with one prompt a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError

BUILTIN = "builtin"  # names the built-in set in the place of a file
_BUILTIN_FILE = Path(__file__).with_name("builtin.jsonl")
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_ID_KEYS = ("id", "question_id", "task_id")  # ours, Spec-Bench's and EAGLE's, HumanEval's


@dataclass(frozen=True, kw_only=True)
class PromptRecord:
    """One prompt of a file."""

    turns: tuple[str, ...]  # the user's texts, several in a conversation
    id: str | int | None = None
    category: str | None = None
    source: str | None = None  # the collection that it is from
    license: str | None = None  # of that collection, by its SPDX name
    reference: str | None = None  # the right answer to the first turn, in the suite's own words
    # A program that raises unless the function that the answer completes is right (HumanEval).
    checks: str | None = None


def read_prompts(path: Path | str) -> list[PromptRecord]:
    """The prompts of a file, in order; `builtin` is the built-in set.

    A `.jsonl` file has one object a line with `prompt` (text) or `turns` (list of texts), and maybe
    `id` (or `question_id`, `task_id`), `category`, `source`, `license`, `reference` (the right
    answer, or a list) and HumanEval's `test` and `entry_point`; other keys are ignored. Any other
    file is text with one prompt a line. Blank lines are skipped. Raises ConfigError naming the
    path, and the line where one is wrong.
    """
    file = _BUILTIN_FILE if str(path) == BUILTIN else Path(path)
    structured = file.suffix.lower() in _JSON_LINES
    records = []
    for number, line in _lines(file):
        where = f"{path}:{number}"
        records.append(_record(line, where) if structured else PromptRecord(turns=(line,)))
    if not records:
        raise ConfigError(f"prompts={path}: the file holds no prompt")
    return records


def first_prompt() -> PromptRecord:
    """The prompt of a run that names none: a summarization, whose answer copies from it."""
    return next(record for record in read_prompts(BUILTIN) if record.id == "summarization-1")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and content of each line that is not blank."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"prompts={file}: no such file; give a .jsonl or text file, or prompts={BUILTIN}"
        ) from None
    except OSError as error:
        raise ConfigError(f"prompts={file}: cannot read it ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompts={file}: not UTF-8 (byte {error.start})") from None
    # Not splitlines: U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.rstrip("\r")


def _record(line: str, where: str) -> PromptRecord:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: expected an object with `prompt` or `turns`")
    named = {key: entry.get(key) for key in ("category", "source", "license")}
    return PromptRecord(
        turns=_turns(entry, where),
        id=next((entry[key] for key in _ID_KEYS if entry.get(key) is not None), None),
        reference=_reference(entry),
        checks=_checks(entry),
        **{key: None if value is None else str(value) for key, value in named.items()},
    )


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


def _turns(entry: dict[str, Any], where: str) -> tuple[str, ...]:
    if "prompt" in entry and "turns" in entry:
        raise ConfigError(f"{where}: has both `prompt` and `turns`; keep one")
    turns = [entry["prompt"]] if "prompt" in entry else entry.get("turns")
    if turns is None:
        keys = ", ".join(sorted(map(str, entry))) or "none"
        raise ConfigError(
            f"{where}: needs `prompt` (text) or `turns` (list of texts); it has {keys}"
        )
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ConfigError(f"{where}: `prompt` must be text, `turns` a list of texts")
    return tuple(turns)
