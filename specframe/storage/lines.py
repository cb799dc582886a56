"""A JSONL file that grows line by line, survives a kill and is never mixed from two settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.storage.closing import Closing
from specframe.storage.differences import first_difference
from specframe.storage.folder_lock import lock
from specframe.storage.whole_files import write_whole

_FOLDER = "hydra.run.dir"  # a key that names the folder of a file, not the file


class LineFile(Closing):
    """Appends lines to a file; they are on the disk when `add_lines` returns.

    The settings on which the lines depend lie beside the file as `*.settings.json`, and a file that
    was made with others is refused. A torn last line of a killed run is cut off. Only one process
    at a time can open a file.

    named_by: the key by which the user named the file; contents: a noun for its lines. Both are for
    messages.
    """

    def __init__(
        self, path: Path, *, settings: dict[str, Any], named_by: str, contents: str
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._named_by = named_by
        self._contents = contents
        self._shown = path.parent if named_by == _FOLDER else path
        self._file = path.open("a+b")
        try:
            lock(self._file.fileno(), f"{path}: another process is writing to it")
            self._check(settings)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file, which frees its lock."""
        self._file.close()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number (from 1) and bytes of every whole line; at the end it cuts a torn line off."""
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            yield number, line
            whole += len(line)
        self._file.truncate(whole)

    def keep_lines(self, count: int) -> None:
        """Cut off all lines behind the first `count`."""
        self._file.seek(0)
        size = sum(len(line) for _, line in zip(range(count), self._file, strict=False))
        self._file.truncate(size)

    def add_lines(self, values: Sequence[dict[str, Any]]) -> None:
        """Append a line for each value and wait for the disk."""
        text = "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in values)
        # A lone surrogate becomes its own JSON escape.
        self._file.write(text.encode("utf-8", errors="backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _check(self, settings: dict[str, Any]) -> None:
        beside = settings_path(self.path)
        if os.fstat(self._file.fileno()).st_size == 0:
            write_whole(beside, f"{json.dumps(settings, indent=2)}\n".encode())
            return
        check_settings(
            self.path,
            settings,
            named_by=self._named_by,
            contents=self._contents,
            shown=self._shown,
        )


def check_settings(
    path: Path,
    settings: dict[str, Any],
    *,
    named_by: str,
    contents: str,
    shown: Path | None = None,
) -> None:
    """Raise ConfigError if a file of lines is there and was made with other settings.

    shown: the path that messages name, if it is not the file's.
    """
    if not path.exists():
        return
    difference = first_difference(
        read_settings(path, named_by=named_by, contents=contents), settings
    )
    if difference is not None:
        raise ConfigError(
            f"{named_by}={shown or path}: its {contents} were made with {difference}; give the old "
            f"value or another {'folder' if named_by == _FOLDER else 'file'}"
        )


def settings_path(path: Path) -> Path:
    """The file of the settings of a file of lines."""
    return path.with_suffix(".settings.json")


def read_settings(path: Path, *, named_by: str, contents: str) -> dict[str, Any]:
    """The settings that a file of lines was made with. Raises ConfigError if there are none."""
    beside = settings_path(path)
    try:
        settings = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{named_by}={path}: {beside.name}, which says how its {contents} were made, "
            "cannot be read; give another file"
        )
    return settings
