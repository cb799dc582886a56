"""Prompt files: what is read, and what each mistake is answered with."""

from __future__ import annotations

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


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "p.txt", 'one\r\n\n  two {"x"}\n')
    assert [record.turns for record in read_prompts(path)] == [("one",), ('  two {"x"}',)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "x"', "not JSON"),
        ('["x"]', "expected an object"),
        ('{"text": "x"}', r"needs `prompt` \(text\) or `turns` \(list of texts\); it has text"),
        ('{"prompt": 3}', "must be text"),
        ('{"turns": []}', "must be text"),
        ('{"turns": ["x", null]}', "must be text"),
        ('{"prompt": "x", "turns": ["x"]}', "keep one"),
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
