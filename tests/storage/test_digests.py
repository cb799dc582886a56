"""Digests are taken anew when a file changed; a file that does not fit its seal counts as lost."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from specframe.storage import digests
from specframe.storage.digests import file_digest, is_unchanged, seal


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "_SETTLED_NS", -1)  # every file counts as settled
    place = tmp_path / "file"
    place.write_bytes(b"abc")
    return place


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_digest_is_taken_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_digest(file) == sha(b"abc")

    def refuse(*args: object) -> None:
        raise AssertionError("it was read again")

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", refuse)
        assert file_digest(file) == sha(b"abc")
    times = file.stat()
    file.write_bytes(b"abd")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # the time of the change stays
    assert file_digest(file) == sha(b"abd")
    file.write_bytes(b"abcd")
    assert file_digest(file) == sha(b"abcd")


def test_a_young_file_is_not_trusted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_SETTLED_NS", 10**12)
    assert file_digest(file) == sha(b"abc")
    assert not list(file.parent.glob("cache/digests/*"))


def test_a_broken_record_costs_time_only(file: Path) -> None:
    file_digest(file)
    (record,) = file.parent.glob("cache/digests/*.json")
    for text in ("", "[]", '{"state": 1}', "\x00"):
        record.write_text(text)
        assert file_digest(file) == sha(b"abc")


def test_seals(file: Path) -> None:
    assert is_unchanged(file) and not is_unchanged(file, sealed=True)
    seal(file)
    assert is_unchanged(file, sealed=True)
    file.write_bytes(b"ab")
    assert not is_unchanged(file)
    file.write_bytes(b"abc")
    assert is_unchanged(file)
    file.with_name("file.sha256").write_text("")
    assert not is_unchanged(file)
    file.unlink()
    assert not is_unchanged(file)
