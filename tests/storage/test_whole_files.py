"""A file that cannot be moved to its place leaves nothing behind, and the old one stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specframe.storage.whole_files import whole_file, write_whole


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


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_half_a_file_is_never_there(tmp_path: Path, error: type[BaseException]) -> None:
    write_whole(tmp_path / "a.json", b"old")

    def write_half() -> None:
        with whole_file(tmp_path / "a.json") as partial:
            partial.write_bytes(b"ne")
            assert (tmp_path / "a.json").read_bytes() == b"old"
            raise error

    with pytest.raises(error):
        write_half()
    assert os.listdir(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"old"


def test_files_are_written_whole_in_one_place() -> None:
    """Whole folders are moved where they are made."""
    package = Path(__file__).resolve().parents[2] / "specframe"
    movers = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if "os.replace(" in file.read_text(encoding="utf-8")
    }
    assert movers == {
        "storage/whole_files.py",
        "lookup/datastore.py",
        "models/package.py",
        "kernel/library.py",
    }
