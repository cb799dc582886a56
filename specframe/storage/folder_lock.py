"""Locks that end with the process which has them, also when it is killed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from specframe.errors import ConfigError
from specframe.storage.closing import Closing
from specframe.storage.system_errors import place_named_by


def lock(descriptor: int, refusal: str) -> None:
    """Lock an open file until it is closed. Raises ConfigError(refusal) if another one has it."""
    with suppress(ImportError):  # no such locks outside of POSIX
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(refusal) from None
        except OSError:  # a file system without locks
            return


class FolderLock(Closing):
    """A folder that one command works in; it is made if it is not there.

    named_by: the key by which the user named the folder. Raises ConfigError if another command
    works in it, or if it cannot be made or written to.
    """

    def __init__(self, folder: Path, *, name: str, named_by: str) -> None:
        shown = os.path.relpath(folder)
        with place_named_by(named_by, shown):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / name).open("ab")
        try:
            refusal = "another command is writing to this folder; wait for it, or give another one"
            lock(self._file.fileno(), f"{named_by}={shown}: {refusal}")
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Free the folder."""
        self._file.close()
