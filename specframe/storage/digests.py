"""Digests of files: taken once, and anew when a file's size or times changed; seals beside files.

A seal is the digest that a file had when it was written into the cache folder, in a small file
beside it. What was changed or cut since then does not fit its seal and is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from specframe.storage.cache_folder import cache_root
from specframe.storage.whole_files import write_whole

_SEAL = ".sha256"
_SETTLED_NS = 100_000_000  # a younger file may change again within one tick of its clock


def file_digest(file: Path) -> str:
    """sha256 of a file's content. Raises OSError where it cannot be read.

    It is kept in the cache folder, with the size and times of the file that it was taken of.
    """
    file = file.resolve()
    name = hashlib.sha256(os.fsencode(file)).hexdigest()[:32]
    record, state = cache_root() / "digests" / f"{name}.json", _state(file)
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(record.read_text(encoding="utf-8"))
        if stored["state"] == state and len(stored["sha256"]) == 64:
            return str(stored["sha256"])
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if _state(file) == state and time.time_ns() - max(state[1:3]) > _SETTLED_NS:
        with suppress(OSError):  # where nothing can be written it is taken each time
            record.parent.mkdir(parents=True, exist_ok=True)
            facts = {"file": str(file), "state": state, "sha256": digest}
            write_whole(record, json.dumps(facts).encode())
    return digest


def seal(file: Path) -> None:
    """Write the digest of a file beside it. Raises OSError."""
    write_whole(_seal_of(file), f"{file_digest(file)}\n".encode())


def is_unchanged(file: Path, *, sealed: bool = False) -> bool:
    """Whether a file is there and is what it was when it was sealed.

    sealed: whether a file without a seal counts as changed.
    """
    if not file.is_file():
        return False
    try:
        return _seal_of(file).read_text(encoding="utf-8").strip() == file_digest(file)
    except FileNotFoundError:
        return not sealed
    except (OSError, ValueError):
        return False


def _seal_of(file: Path) -> Path:
    return file.with_name(file.name + _SEAL)


def _state(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
