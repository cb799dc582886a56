"""A JSONL file that grows line by line, survives a kill and is never mixed from two settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from specframe.errors import ConfigError

_FOLDER = "hydra.run.dir"  # a key that names the folder of a file


class LineFile:
    """Appends lines to a file; what was added is on the disk when `add_lines` returns.

    settings: what the lines depend on, kept beside the file as `*.settings.json`; a file that was
    made with others is refused. sort_of: the key by which the user named the file; things: what its
    lines are, in messages. A torn last line of a killed run is cut off. One process at a time.
    """

    def __init__(self, path: Path, *, settings: dict[str, Any], sort_of: str, things: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._sort_of = sort_of
        self._things = things
        self._shown = path.parent if sort_of == _FOLDER else path
        self._file = path.open("a+b")
        try:
            _lock(self._file.fileno(), path)
            self._check(settings)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go, and its lock."""
        self._file.close()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number (from 1) and bytes of every whole line; read to the end, it cuts a torn one."""
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            yield number, line
            whole += len(line)
        self._file.truncate(whole)

    def add_lines(self, values: Sequence[dict[str, Any]]) -> None:
        """Append one line a value and wait for the disk."""
        text = "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in values)
        # A lone surrogate becomes its own JSON escape.
        self._file.write(text.encode("utf-8", errors="backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _check(self, settings: dict[str, Any]) -> None:
        beside = settings_path(self.path)
        settings = json.loads(json.dumps(settings))
        if os.fstat(self._file.fileno()).st_size == 0:
            partial = beside.with_name(f".{beside.name}.partial")
            partial.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
            os.replace(partial, beside)
            return
        held = read_settings(self.path, sort_of=self._sort_of, things=self._things)
        kind = "folder" if self._sort_of == _FOLDER else "file"
        for key in [*settings, *held]:
            if settings.get(key) != held.get(key):
                raise ConfigError(
                    f"{self._sort_of}={self._shown}: its {self._things} were made with {key}="
                    f"{_short(held.get(key))}, this run has {_short(settings.get(key))}; "
                    f"give the old value or another {kind}"
                )


def settings_path(path: Path) -> Path:
    """Where the settings of a file of lines are."""
    return path.with_suffix(".settings.json")


def read_settings(path: Path, *, sort_of: str, things: str) -> dict[str, Any]:
    """The settings that a file of lines was made with. Raises ConfigError if there are none."""
    beside = settings_path(path)
    try:
        held = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        held = None
    if not isinstance(held, dict):
        raise ConfigError(
            f"{sort_of}={path}: {beside.name}, which says how its {things} were made, "
            "cannot be read; give another file"
        )
    return held


def _lock(descriptor: int, path: Path) -> None:
    """Held until the file is closed, by a kill too."""
    with suppress(ImportError):  # no such locks outside of POSIX
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{path}: another process is writing to it") from None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
