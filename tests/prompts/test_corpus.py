"""What a corpus file becomes, and whose token ids are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specframe.errors import ConfigError
from specframe.models.tokenizer import identity_of
from specframe.prompts.answers import Answer, write_compact
from specframe.prompts.corpus import SEPARATOR, Corpus
from tests.small_models import speller, toy


def read(path: Path, target: object = None) -> list[int]:
    """Ids of a corpus, of the toy unless told."""
    return Corpus.of(str(path), target or toy()).read().tolist()  # type: ignore[arg-type]


def answer(name: str, tokens: list[int]) -> Answer:
    """An answer of these ids."""
    return Answer(
        id=name,
        turn=0,
        category=None,
        source=None,
        turns=("?",),
        prompt_tokens=[1],
        tokens=tokens,
        finish_reason="length",
    )


def test_answers_are_documents(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    lines = [{"tokens": [1, 2, 3], "id": 4}, {"tokens": [5]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "\n")
    assert read(path) == [1, 2, 3, SEPARATOR, 5]


def test_a_line_that_a_kill_has_torn_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"tokens": [1, 2]}\n{"tokens": [3, 4')
    assert read(path) == [1, 2]
    path.write_text('{"tokens": [1, 2]}\n{"tokens": [3]}')
    assert read(path) == [1, 2, SEPARATOR, 3]


def test_compact_answers(tmp_path: Path) -> None:
    path = tmp_path / "answers.npz"
    write_compact(path, [answer("a", [1, 2]), answer("b", [3]), answer("c", [4, 5])])
    assert read(path) == [1, 2, SEPARATOR, 3, SEPARATOR, 4, 5]
    np.savez(path, tokens=np.array([3, 1], dtype=np.int64))
    assert read(path) == [3, 1], "plain ids are one document"


def test_text_is_read_with_the_target_s_tokenizer(tmp_path: Path) -> None:
    target = speller()
    assert target.tokenizer is not None
    path = tmp_path / "book.txt"
    text = "one line\n\nand another\n" * 3
    path.write_text(text)
    assert read(path, target) == target.tokenizer.encode_plain(text)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "ab"}) + "\n" + json.dumps({"text": "c"}) + "\n")
    plain = target.tokenizer.encode_plain
    assert read(path, target) == [*plain("ab"), SEPARATOR, *plain("c")]


def test_long_text_is_encoded_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specframe.prompts.corpus._ENCODED", 10)
    target = speller()
    assert target.tokenizer is not None
    path = tmp_path / "book.txt"
    text = "".join(f"line {number}\n" for number in range(20))
    path.write_text(text)
    assert read(path, target) == target.tokenizer.encode_plain(text)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"turns": ["?"]}\n', r"drafter\.corpus=.*a\.jsonl:1: no object with `tokens`"),
        ("a.jsonl", "[1, 2]\n", r":1: no object"),
        ("a.jsonl", '{"tokens": [1, -2]}\n', r":1: no object"),
        ("a.jsonl", '{"tokens": [1, "2"]}\n', r":1: no object"),
        ("a.jsonl", '{"tokens": []}\n', "no tokens in it"),
        ("a.jsonl", "", "no tokens in it"),
        ("a.jsonl", '{"tokens": [6]}\n', r"the token id 6, .* has 0 \.\. 5; give answers"),
        (
            "a.npz",
            "not arrays",
            r"not arrays of token ids .* \(ValueError: it is no archive",
        ),
    ],
)
def test_what_is_no_corpus_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.txt",
            b"\x8f\x01\xff" * 50,
            r"corpus=.*a\.txt: byte 0 \(0x8f\) is no UTF-8; give a text",
        ),
        ("a.txt", "caf\xe9".encode("latin-1"), r"byte 3 \(0xe9\) is no UTF-8"),
        ("a", b"ELF\0\0\0text", "zero bytes, so it is no text"),
        ("a.jsonl", b'{"tokens": [1]}\n\xff\xfe\n', r"a\.jsonl:2: byte 0 \(0xff\) is no UTF-8"),
    ],
)
def test_bytes_that_are_no_text_are_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read(path, speller())


def test_a_line_torn_within_a_letter_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"tokens": [1]}\n{"text": "\xc3')
    assert read(path) == [1]


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    target = toy()
    target.tokenizer = None
    with pytest.raises(ConfigError, match="has no tokenizer to read text with"):
        read(path, target)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.corpus=.*none\.jsonl: no such file; give"):
        read(tmp_path / "none.jsonl")


def test_ids_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"tokens": [1, 2]}\n')
    beside = tmp_path / "answers.settings.json"
    target = speller()
    own = identity_of(target.tokenizer, None)
    beside.write_text(json.dumps({"tokenizer": own, "dtype": "float32"}))
    assert read(path, target) == [1, 2]
    with pytest.raises(ConfigError, match="of another tokenizer than that of"):
        read(path, toy())
    beside.write_text(json.dumps({"tokenizer": {"of": "vocabulary", "sha256": "0" * 64}}))
    with pytest.raises(ConfigError, match=r"another tokenizer .*; give answers of this target"):
        read(path, target)
    beside.write_text(json.dumps({"tokenizer": None}))
    bare = toy()
    bare.tokenizer = None
    assert read(path, bare) == [1, 2], "no tokenizer then, none now"
    with pytest.raises(ConfigError, match="another tokenizer"):
        read(path, target)
    beside.write_text("{")
    with pytest.raises(ConfigError, match=r"answers\.settings\.json, which says whose"):
        read(path, target)


def test_a_tokenizer_file_is_not_compared_with_a_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"tokens": [1, 2]}\n')
    held = {"tokenizer": {"of": "tokenizer.json", "sha256": "0" * 64}}
    (tmp_path / "answers.settings.json").write_text(json.dumps(held))
    assert read(path, speller()) == [1, 2], "nothing is known against it but its ids, which fit"


def test_the_digest_changes_with_the_file_and_for_text_with_the_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("one")
    first = Corpus.of(str(path), speller()).digest
    assert first == Corpus.of(str(path), speller()).digest
    assert first != Corpus.of(str(path), toy()).digest
    path.write_text("two")
    assert first != Corpus.of(str(path), speller()).digest


def test_the_answers_that_come_along_are_smollm2_s() -> None:
    with pytest.raises(ConfigError, match=r"drafter\.corpus=builtin: its tokens are of another"):
        Corpus.of("builtin", toy())
