"""Prompt files: what is read, and what each mistake is answered with."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from specframe.errors import ConfigError
from specframe.prompts.reader import PromptRecord, first_prompt, read_prompts


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def test_the_built_in_set() -> None:
    records = read_prompts("builtin")
    assert Counter(record.category for record in records) == dict.fromkeys(
        ("conversation", "translation", "summarization", "qa", "math", "rag"), 8
    )
    assert len({record.id for record in records}) == 48
    assert first_prompt() in read_prompts(Path("builtin"))


def test_json_lines(tmp_path: Path) -> None:
    lines = [
        '{"id": "a", "category": "qa", "prompt": "one\\ntwo"}',
        "",
        '{"question_id": 81, "turns": ["first", "second"], "reference": [""]}\r',
        '{"task_id": "HumanEval/0", "prompt": "a\u2028b"}',
    ]
    path = write(tmp_path, "p.jsonl", "\ufeff" + "\n".join(lines))
    assert read_prompts(path) == [
        PromptRecord(id="a", category="qa", turns=("one\ntwo",)),
        PromptRecord(id=81, turns=("first", "second")),
        PromptRecord(id="HumanEval/0", turns=("a\u2028b",)),
    ]


CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]


def test_messages_stand_before_the_turn_that_is_answered(tmp_path: Path) -> None:
    path = write(tmp_path, "p.jsonl", json.dumps({"id": 1, "messages": CONVERSATION}))
    (record,) = read_prompts(path)
    assert record.turns == ("three",)
    assert record.before == (("system", "be brief"), ("user", "one"), ("assistant", "two"))
    alone = PromptRecord(turns=("three",))
    assert record.digest != alone.digest, "the same question after other messages is another one"
    assert alone.digest == hashlib.sha256(b'["three"]').hexdigest()[:16]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_file_is_an_array_or_an_object_or_lines(tmp_path: Path, indent: int | None) -> None:
    entries = [{"id": "a", "prompt": "x"}, "y", {"messages": CONVERSATION[:2]}]
    path = write(tmp_path, "p.json", json.dumps(entries, indent=indent))
    assert read_prompts(path) == [
        PromptRecord(id="a", turns=("x",)),
        PromptRecord(turns=("y",)),
        PromptRecord(before=(("system", "be brief"),), turns=("one",)),
    ]
    path = write(tmp_path, "p.json", json.dumps(entries[0], indent=indent))
    assert read_prompts(path) == [PromptRecord(id="a", turns=("x",))]
    path = write(tmp_path, "p.json", "\n".join(map(json.dumps, entries)))
    assert [record.turns for record in read_prompts(path)] == [("x",), ("y",), ("one",)]


def test_an_item_of_an_array_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "p.json", '[{"prompt": "x"}, {"text": "y"}]')
    with pytest.raises(ConfigError, match=r"p\.json\[2\]: needs `prompt`"):
        read_prompts(path)
    path = write(tmp_path, "p.json", "[" * 100_000)
    with pytest.raises(ConfigError, match=r"p\.json:1: not JSON that can be read, it is nested"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("typed", "turns"),
    [
        ("one, two\n\nthree {x}\r\n", [("one, two",), ("three {x}",)]),
        ('{"prompt": "a"}\n{"turns": ["b", "c"]}\n', [("a",), ("b", "c")]),
        ('[{"prompt": "a"},\n "b"]', [("a",), ("b",)]),
        ("[1] what is this?", [("[1] what is this?",)]),
    ],
)
def test_standard_input_is_read_once(
    monkeypatch: pytest.MonkeyPatch, typed: str, turns: list[tuple[str, ...]]
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + typed.encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stream)
    for _ in range(2):
        assert [record.turns for record in read_prompts("-")] == turns


def test_what_is_wrong_with_standard_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        (io.TextIOWrapper(io.BytesIO(b"\xff")), r"prompts=-: not UTF-8 \(byte 0\)"),
        (io.StringIO(" \n"), "prompts=-: the file holds no prompt"),
        (io.StringIO('{"prompt": 1}'), r"-\[1\]: `prompt` must be text"),
        (None, "prompts=-: this process has no standard input"),
    ]
    for stream, reason in cases:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(ConfigError, match=reason):
            read_prompts(Path("-"))


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "p.txt", 'one\r\n\n  two {"x"}\n')
    assert [record.turns for record in read_prompts(path)] == [("one",), ('  two {"x"}',)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "x"', "not JSON"),
        ('["x"]', "expected an object"),
        (
            '{"text": "x"}',
            r"needs `prompt` \(text\), `turns` .* or `messages` .*; it has text",
        ),
        ('{"prompt": 3}', "must be text"),
        ('{"turns": []}', "must be text"),
        ('{"turns": ["x", null]}', "must be text"),
        ('{"prompt": "x", "turns": ["x"]}', "keep one"),
        ('{"turns": ["x"], "messages": []}', "has both `turns` and `messages`; keep one"),
        ('{"prompt": "\\ud800"}', r"half of a surrogate pair \(\\ud800, character 1\) is no text"),
        ('{"turns": ["x", "ab\\udfff"]}', r"surrogate pair \(\\udfff, character 3\) is no text"),
        ("[" * 100_000, "nested too deeply"),
        ('{"prompt": "x", "n": %s}' % ("9" * 5000), "not JSON that can be read"),
        ('{"prompt": "x", "id": [1]}', "`id` must be text or a number"),
        ('{"prompt": "x", "task_id": {}}', "`task_id` must be text or a number"),
        ('{"messages": "x"}', "`messages` must be a list of objects"),
        ('{"messages": ["x"]}', "message 1 needs a role: system, developer, user, assistant, tool"),
        ('{"messages": [{"role": "usr", "content": "x"}]}', "message 1 needs a role"),
        ('{"messages": [{"role": "user", "content": 1}]}', "message 1 needs `content`, a text"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "the last message must be the us"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path, "p.jsonl", f'{{"prompt": "fine"}}\n\n{line}\n')
    with pytest.raises(ConfigError, match=reason) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}:3: ")


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    cases = [
        (tmp_path / "none.jsonl", "no such file"),
        (tmp_path, "cannot read it"),
        (write(tmp_path, "empty.txt", "\n \n"), "holds no prompt"),
        (write(tmp_path, "latin.txt", "caf\u00e9", "latin-1"), "not UTF-8"),
    ]
    for path, reason in cases:
        with pytest.raises(ConfigError, match=reason) as caught:
            read_prompts(path)
        assert f"prompts={path}" in str(caught.value)


def test_source_and_license_stand_beside_their_prompt(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    line = '{"prompt": "a", "source": "s", "license": "MIT"}\n\n{"prompt": "b"}\n'
    path.write_text(line, encoding="utf-8")
    assert [(one.source, one.license) for one in read_prompts(path)] == [("s", "MIT"), (None, None)]
