"""Answers of a model to prompts, as files.

task=distill writes them as JSONL with their prompts, in a file that survives a kill. The compact
form (.npz) has the answers' token ids alone and is small enough to be committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.storage.arrays import check_integers, read_arrays
from specframe.storage.differences import first_difference
from specframe.storage.lines import LineFile
from specframe.storage.whole_files import whole_file

Key = tuple[str | int, int]  # id of the prompt, turn
COMPACT_BYTES = 4_000_000  # largest compact file that is worth committing
_REASONS = ("eos", "length")
_ARRAYS = ("tokens", "ends", "turns", "reasons", "ids")
_COMPACT = "a file of compact answers"  # for messages


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to one turn of a prompt."""

    id: str | int  # of the prompt
    turn: int  # from 0
    category: str | None
    source: str | None
    turns: tuple[str, ...]  # the user's texts up to this turn
    prompt_tokens: list[int]  # all that the model saw, its own earlier answers included
    tokens: list[int]  # the answer, with its end token
    finish_reason: str  # eos or length

    @property
    def key(self) -> Key:
        """The prompt's id and the turn."""
        return self.id, self.turn


@dataclass(frozen=True, kw_only=True)
class CompactAnswer:
    """An answer without its prompt, which the prompt file has under the same id."""

    id: str | int
    turn: int
    tokens: list[int]
    finish_reason: str


def read_answers(path: Path) -> Iterator[Answer]:
    """The answers of a file, in order; a torn last line is left out.

    Raises ConfigError naming the line that is not an answer.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield _answer(line, f"{path}:{number}")


class AnswerFile(LineFile):
    """A file of answers that grows."""

    def __init__(self, path: Path, *, settings: dict[str, Any], named_by: str) -> None:
        super().__init__(path, settings=settings, named_by=named_by, contents="answers")
        self.tokens_of: dict[Key, list[int]] = {}  # the answers in the file
        self._turns_of: dict[Key, tuple[str, ...]] = {}
        self._named_as = f"{named_by}={path}"
        try:
            for number, line in self.lines():
                answer = _answer(line, f"{path}:{number}")
                self.tokens_of[answer.key] = answer.tokens
                self._turns_of[answer.key] = answer.turns
        except BaseException:
            self.close()
            raise

    def check_prompts(self, turns: Mapping[str | int, Sequence[str]]) -> None:
        """Raise ConfigError if the file answers a prompt that is not among these.

        turns: the user's texts of each prompt, by its id.
        """
        for (name, turn), earlier in self._turns_of.items():
            now = turns.get(name)
            before = {"turns": list(earlier)}
            after = {"turns": None if now is None else list(now[: turn + 1])}
            if difference := first_difference(before, after):
                raise ConfigError(
                    f"{self._named_as}: its prompt {name!r} was made with {difference}; give the "
                    "old prompts= or another file"
                )

    def add(self, answers: Sequence[Answer]) -> None:
        """Append answers and wait for the disk."""
        self.add_lines([asdict(answer) for answer in answers])
        self.tokens_of |= {answer.key: answer.tokens for answer in answers}


def write_compact(path: Path, answers: Iterable[Answer], *, max_bytes: int = COMPACT_BYTES) -> int:
    """Write answers as compressed token ids (.npz); returns its bytes.

    Arrays: tokens (uint16, uint32 for large vocabularies), ends [n], turns [n], reasons [n]
    (0 eos, 1 length) and ids (JSON as bytes). Raises ValueError past max_bytes; nothing is left.
    """
    import numpy as np

    listed = list(answers)
    tokens = np.array([token for answer in listed for token in answer.tokens], dtype=np.uint32)
    narrow = not len(tokens) or tokens.max() < 2**16
    reasons = [_REASONS.index(each.finish_reason) for each in listed]
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        with partial.open("wb") as file:
            np.savez_compressed(
                file,
                tokens=tokens.astype(np.uint16) if narrow else tokens,
                ends=np.cumsum([len(each.tokens) for each in listed], dtype=np.uint32),
                turns=np.array([each.turn for each in listed], dtype=np.uint8),
                reasons=np.array(reasons, dtype=np.uint8),
                ids=np.frombuffer(json.dumps([one.id for one in listed]).encode(), dtype=np.uint8),
            )
        size = partial.stat().st_size
        if size > max_bytes:
            raise ValueError(
                f"{path}: {len(listed)} answers take {size} bytes, more than {max_bytes}; "
                "give fewer"
            )
    return size


def read_compact(path: Path) -> Iterator[CompactAnswer]:
    """The answers that `write_compact` wrote, in order. ConfigError if it is no such file."""
    arrays = read_arrays(path, _ARRAYS, place=str(path), contents=_COMPACT)
    check_integers(arrays, place=str(path), contents=_COMPACT)
    tokens, ends, turns, reasons = (arrays[name].tolist() for name in _ARRAYS[:-1])
    names = _names(arrays["ids"], path)
    counts = {len(names), len(ends), len(turns), len(reasons)}
    starts = [0, *ends]
    ordered = starts == sorted(starts) and starts[-1] == len(tokens)
    if len(counts) > 1 or not ordered or any(reason >= len(_REASONS) for reason in reasons):
        raise ConfigError(f"{path}: not {_COMPACT} (its arrays contradict each other)")
    for name, turn, start, end, reason in zip(names, turns, starts, ends, reasons, strict=False):
        yield CompactAnswer(
            id=name, turn=turn, tokens=tokens[start:end], finish_reason=_REASONS[reason]
        )


def _names(ids: Any, path: Path) -> list[str | int]:
    try:
        names = json.loads(ids.astype("uint8").tobytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not {_COMPACT} (`ids` is no JSON: {error})") from None
    if not isinstance(names, list) or not all(isinstance(name, str | int) for name in names):
        raise ConfigError(f"{path}: not {_COMPACT} (`ids` is no list of texts and numbers)")
    return names


def _answer(line: bytes, where: str) -> Answer:
    try:
        entry = json.loads(line)
        values = {field.name: entry[field.name] for field in fields(Answer)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{where}: not an answer ({error})") from None
    return Answer(**{**values, "turns": tuple(values["turns"])})
