"""Refusals of the operating system become one sentence that names the place."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from specframe.errors import ConfigError
from specframe.storage.system_errors import place_named_by, standard_streams, system_sentence

FULL = "no space is left on the device; free some, or give another place"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "x", "a/b"), f"a/b: {FULL}"),
        (OSError(errno.ENOSPC, "x"), FULL),
        (OSError(errno.EROFS, "x", "a"), "a: the file system is read-only; give another place"),
        (
            OSError(errno.ELOOP, "x", Path("a")),
            "a: its symbolic links lead in a circle; give another place",
        ),
        (
            FileExistsError(errno.EEXIST, "x", b"a"),
            "a: a file is there where a folder is wanted; give another place",
        ),
        (
            IsADirectoryError(errno.EISDIR, "x", "a"),
            "a: a folder is there where a file is wanted; give another place",
        ),
        (FileNotFoundError(errno.ENOENT, "x", "a"), "no such file: a"),
        (OSError(errno.ENOTTY, "x", "a"), f"a: {os.strerror(errno.ENOTTY)}"),
        # What safetensors and tokenizers pass on.
        (RuntimeError("I/O error: No space left on device (os error 28)"), FULL),
        (BrokenPipeError(errno.EPIPE, "x"), None),
        (OSError("model x is not a local folder"), None),
        (RuntimeError("boom"), None),
    ],
)
def test_a_sentence_for_each_refusal(error: BaseException, sentence: str | None) -> None:
    assert system_sentence(error) == sentence


def test_a_place_is_named_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for place, told in (
        (file, "a file is there where a folder is wanted"),
        (file / "x", "a part of this path is a file and no folder"),
        (tmp_path / "loop" / "x", "its symbolic links lead in a circle"),
    ):
        with pytest.raises(ConfigError) as refused, place_named_by("hydra.run.dir", place):
            place.mkdir(parents=True, exist_ok=True)
        assert str(refused.value) == f"hydra.run.dir={place}: {told}; give another place"


def test_streams_that_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    assert standard_streams() is None
    sys.stderr = sys.stdin = None  # type: ignore[assignment]
    assert standard_streams() is None
    sys.stderr.write("into nothing")
    assert sys.stdin.read() == ""
    sys.stdout = None  # type: ignore[assignment]
    assert standard_streams() == "standard output is closed; send it to a file, or to /dev/null"
