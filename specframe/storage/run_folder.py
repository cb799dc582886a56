"""The folder of a run, which is one run's: locked while it is written, with what it is made with.

The record is run.json. The same configuration goes on in the folder or finds it complete, and
another one is refused before anything is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.storage.closing import Closing
from specframe.storage.folder_lock import FolderLock
from specframe.storage.secret_keys import is_secret
from specframe.storage.system_errors import place_named_by
from specframe.storage.whole_files import write_whole

RECORD_FILE = "run.json"
_LOCK = ".run.lock"
_MANIFEST = "manifest.json"
_LARGEST_READ = 64 << 20  # bytes; of a larger file, size and time stand for the content
_MOST_FILES = 10_000  # of a folder whose files stand for it
_LONGEST_SHOWN = 60  # characters of a value in a message


class RunFolder(Closing):
    """The folder of one run, locked from here to `close`, also by a kill.

    config: plain values that the results depend on; named_by: the key by which the user named the
    folder. Raises ConfigError for a folder that another command works in, or that has a run of
    another configuration; nothing is written then.
    """

    def __init__(self, path: Path, *, config: Mapping[str, Any], named_by: str) -> None:
        self.path = path
        plain = json.loads(json.dumps(config, default=str))
        self.config = {key: _without_secret(key, value) for key, value in _flat(plain)}
        self._named_by = named_by
        with place_named_by(named_by, os.path.relpath(path)):
            self._check_unrecorded()
        self._lock = FolderLock(path, name=_LOCK, named_by=named_by)
        try:
            with place_named_by(named_by, os.path.relpath(path)):
                self.is_complete = self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the folder for another command."""
        self._lock.close()

    @contextmanager
    def recorded(self, *, free: Collection[str], outputs: Collection[str]) -> Iterator[None]:
        """The work of the run is done inside.

        free: keys that the results do not depend on; outputs: keys that name files which the work
        itself writes. Where it raises before it left any result, nothing is on record.
        """
        record = {
            "complete": False,
            "config": self.config,
            "free": sorted(free),
            "inputs": self._digests({*free, *outputs}),
        }
        self._write(record)
        try:
            yield
        except BaseException:
            if not self._has_results():
                (self.path / RECORD_FILE).unlink(missing_ok=True)
            raise

    def finish(self) -> None:
        """Put on record that the run is complete: the same command has nothing left to do."""
        self._write({**self._read(), "complete": True})

    def _check(self) -> bool:
        """Compare with the record, if there is one; returns whether the run is complete."""
        record = self._read()
        if not record:
            return False
        there, free = record["config"], set(record["free"])
        same = True
        for key in dict.fromkeys([*self.config, *there]):
            if _text(self.config, key) != _text(there, key):
                same = False
                if key not in free:
                    raise self._refused(key, there)
        for key, digest in record["inputs"].items():
            if self._digest(key, there.get(key)) != digest:
                named = there.get(key)
                shown = named if isinstance(named, str) else _short(named)
                raise ConfigError(
                    f"{self._shown()}: what {key}={shown} names has changed since the run that is "
                    "there; give the old content, or another folder"
                )
        return bool(record["complete"]) and same

    def _refused(self, key: str, there: Mapping[str, Any]) -> ConfigError:
        before = _short(there[key]) if key in there else "no such key"
        now = _short(self.config[key]) if key in self.config else "no such key"
        return ConfigError(
            f"{self._shown()}: the run that is there has {key}={before}, this one has {now}; give "
            "the old value, or another folder"
        )

    def _check_unrecorded(self) -> None:
        """Refuse results that say nothing of their configuration."""
        known = (self.path / RECORD_FILE).exists()
        if not known and (self.path / _MANIFEST).exists() and self._has_results():
            raise ConfigError(
                f"{self._shown()}: it has a run without {RECORD_FILE}, which would say how it was "
                "made; give another folder"
            )

    def _has_results(self) -> bool:
        """Whether there is more than the files which every command leaves."""
        own = (RECORD_FILE, _MANIFEST)
        names = [entry.name for entry in self.path.iterdir() if entry.name not in own]
        return any(name[0] != "." and not name.endswith(".log") for name in names)

    def _read(self) -> dict[str, Any]:
        file = self.path / RECORD_FILE
        if not file.is_file():
            return {}
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            if {"complete", "config", "free", "inputs"} <= set(record):
                return dict(record)
        except (ValueError, TypeError):
            pass
        raise ConfigError(f"{self._shown()}: its {RECORD_FILE} is damaged; give another folder")

    def _write(self, record: dict[str, Any]) -> None:
        """Write the record whole or not at all."""
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        write_whole(self.path / RECORD_FILE, text.encode("utf-8", errors="backslashreplace"))

    def _digests(self, without: Collection[str]) -> dict[str, str]:
        digests = {
            key: self._digest(key, value)
            for key, value in self.config.items()
            if key not in without and key.rpartition(".")[2] != "name"
        }
        return {key: digest for key, digest in digests.items() if digest}

    def _digest(self, key: str, value: Any) -> str:
        """Stands for the content of the files and folders that a value names; "" if it names none.

        The run's own folder is left out, which may lie in a folder that it reads.
        """
        names = value if isinstance(value, list) else [value]
        parts = [_content(Path(name), self.path) for name in names if _names_a_path(name)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if any(parts) else ""

    def _shown(self) -> str:
        return f"{self._named_by}={os.path.relpath(self.path)}"


def _names_a_path(name: Any) -> bool:
    if not isinstance(name, str) or not name or "\0" in name or len(name) > 4096:
        return False
    try:
        return Path(name).exists()
    except OSError:  # a text that is too long for a name
        return False


def _content(path: Path, own: Path) -> str:
    if path.is_file():
        return _of_file(path)
    parts, own = [], own.resolve()
    for folder, folders, files in os.walk(path):
        inside = Path(folder)
        folders[:] = sorted(each for each in folders if (inside / each).resolve() != own)
        for name in sorted(files):
            if not name.startswith("."):
                with_time = _size_and_time(inside / name)
                parts.append(f"{os.path.relpath(inside / name, path)} {with_time}")
        if len(parts) > _MOST_FILES:
            break
    return "\n".join(parts)


def _of_file(path: Path) -> str:
    with suppress(OSError):  # who reads it will say why it cannot be read
        if path.stat().st_size <= _LARGEST_READ:
            return hashlib.sha256(path.read_bytes()).hexdigest()
    return _size_and_time(path)


def _size_and_time(path: Path) -> str:
    try:
        state = path.stat()
    except OSError:  # a link to nowhere
        return ""
    return f"{state.st_size} {state.st_mtime_ns}"


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _without_secret(key: str, value: Any) -> Any:
    """A digest in place of a password: it is compared, and nobody can read it."""
    if value is None or not is_secret(key):
        return value
    return f"secret {hashlib.sha256(str(value).encode()).hexdigest()[:16]}"


def _text(values: Mapping[str, Any], key: str) -> str | None:
    """None for a key that is not there, which differs from one that is null."""
    return json.dumps(values[key], sort_keys=True) if key in values else None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
