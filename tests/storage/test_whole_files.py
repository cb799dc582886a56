"""A file that cannot be moved to its place leaves nothing behind, and the old one stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specframe.storage.whole_files import write_whole


def test_it_replaces_the_file(tmp_path: Path) -> None:
    for data in (b"one\n", b"two\n"):
        write_whole(tmp_path / "a.json", data)
        assert (tmp_path / "a.json").read_bytes() == data
    assert os.listdir(tmp_path) == ["a.json"]


def test_after_an_error_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a.json", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a.json", b"new")
    assert os.listdir(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"old"
