"""Answer files: what is on the disk after a kill, and the compact form of token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specframe.errors import ConfigError
from specframe.prompts.answers import (
    Answer,
    AnswerFile,
    read_answers,
    read_compact,
    write_compact,
)

SETTINGS = {"model": "M", "max_new_tokens": 8, "sampling": {}}


def answer(name: str | int, tokens: list[int], **changes: Any) -> Answer:
    values = {"turn": 0, "category": None, "source": None, "turns": ("a\u2028b\ud800",)}
    values |= {"prompt_tokens": [1], "finish_reason": "eos", **changes}
    return Answer(id=name, tokens=tokens, **values)


def opened(path: Path, **changes: Any) -> AnswerFile:
    return AnswerFile(path, settings=SETTINGS | changes, named_by="task.output")


def test_lines_round_trip_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.jsonl"
    with opened(path) as file:
        file.add([answer("a", [1, 2]), answer(3, [4])])
        assert file.tokens_of == {("a", 0): [1, 2], (3, 0): [4]}
    path.write_bytes(path.read_bytes() + b'{"id": "torn", "tok')
    assert [one.key for one in read_answers(path)] == [("a", 0), (3, 0)]
    with opened(path) as file:
        assert set(file.tokens_of) == {("a", 0), (3, 0)}
        file.add([answer("b", [5])])
    assert list(read_answers(path)) == [answer("a", [1, 2]), answer(3, [4]), answer("b", [5])]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "answers.jsonl"
    with opened(path), pytest.raises(ConfigError, match="another process is writing"):
        opened(path)
    opened(path).__exit__()


def test_other_or_unknown_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with opened(path):
        pass
    with opened(path, max_new_tokens=9) as file:  # nothing is there to mix with
        file.add([answer("a", [1])])
    with pytest.raises(ConfigError, match="made with max_new_tokens=9, this run has 8"):
        opened(path)
    with pytest.raises(ConfigError, match="made with seed=null, this run has 1"):
        opened(path, max_new_tokens=9, seed=1)
    path.with_suffix(".settings.json").unlink()
    with pytest.raises(ConfigError, match=r"answers.settings.json"):
        opened(path, max_new_tokens=9)


def test_a_line_that_is_no_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"id": 1}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"answers.jsonl:1: not an answer"):
        list(read_answers(path))


@pytest.mark.parametrize("largest", [65_535, 65_536])
def test_compact_form_keeps_every_id_of_any_vocabulary(tmp_path: Path, largest: int) -> None:
    kept = [answer("a", [0, largest, 2]), answer(9, [7], turn=1, finish_reason="length")]
    path = tmp_path / "answers.npz"
    assert write_compact(path, kept) == path.stat().st_size
    held = [(one.id, one.turn, one.tokens, one.finish_reason) for one in read_compact(path)]
    assert held == [("a", 0, [0, largest, 2], "eos"), (9, 1, [7], "length")]
    write_compact(path, [])
    assert list(read_compact(path)) == []


def test_compact_form_keeps_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "answers.npz"
    with pytest.raises(ValueError, match="give fewer"):
        write_compact(path, [answer("a", list(range(1000)))], max_bytes=1000)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="not a file of compact answers"):
        list(read_compact(path))
