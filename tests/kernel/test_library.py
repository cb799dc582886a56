"""The compiled kernel in the cache: compiled once, and again when it is not what it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from specframe.kernel import library


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Files in the order in which they were compiled, into a cache of their own."""
    done: list[Path] = []

    def compile_(compiler: str, file: Path) -> None:
        done.append(file)
        file.write_bytes(b"a kernel")

    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "_compile", compile_)
    library.library.cache_clear()
    yield done
    library.library.cache_clear()


def test_a_changed_or_cut_kernel_is_compiled_again(compiled: list[Path]) -> None:
    file = library.library_file()
    assert library.library_file() == file and compiled == [file]
    for count, content in enumerate([b"a kerneL", b"a ker", b""], start=2):
        file.write_bytes(content)
        assert library.library_file() == file
        assert compiled == [file] * count and file.read_bytes() == b"a kernel"
    file.with_name(file.name + ".sha256").unlink()
    library.library_file()
    assert len(compiled) == 5


def test_a_kernel_that_cannot_be_loaded_is_one_line(compiled: list[Path]) -> None:
    with pytest.raises(library.NoCompiler, match=r"cannot load .*\.so \(") as caught:
        library.library()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_a_truncated_kernel_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    library.library.cache_clear()
    try:
        file = library.library_file()
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        assert library.library().panel_columns() > 0
        assert file.read_bytes() == whole
    finally:
        library.library.cache_clear()
