"""Errors of the operating system, and of libraries that pass them on, as one plain sentence."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from specframe.errors import ConfigError

# What happened, and what to do about it.
_SENTENCES = {
    errno.ENOSPC: "no space is left on the device; free some, or give another place",
    errno.EDQUOT: "the disk quota is used up; free some space, or give another place",
    errno.EROFS: "the file system is read-only; give another place",
    errno.EACCES: "permission is denied; give another place, or change who may use this one",
    errno.EPERM: "the operation is not permitted; give another place",
    errno.ELOOP: "its symbolic links lead in a circle; give another place",
    errno.EEXIST: "a file is there where a folder is wanted; give another place",
    errno.ENOTDIR: "a part of this path is a file and no folder; give another place",
    errno.EISDIR: "a folder is there where a file is wanted; give another place",
    errno.ENAMETOOLONG: "the name is too long; give a shorter one",
    errno.EFBIG: "the file would be larger than the system allows; give another place",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine; close some",
    errno.EIO: "the device fails to read or write; give another place",
}
_FULL = os.makedev(1, 7)  # /dev/full
_PASSED_ON = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust end their message


def system_sentence(error: BaseException) -> str | None:
    """The one line for an error of the operating system; None for any other error.

    A closed pipe is none: whoever reads has seen enough. Errors without a number are not of the
    system either (transformers raises OSError for a model that it does not know).
    """
    number, place = _number(error), getattr(error, "filename", None)
    if number is None or number == errno.EPIPE:
        return None
    if place is not None and not isinstance(place, int):
        name = os.fsdecode(place)
    else:
        is_output = number == errno.ENOSPC and output_is_full()
        name = "standard output" if is_output else ""
    if number == errno.ENOENT:
        return f"no such file: {name}" if name else "a file is missing"
    text = _SENTENCES.get(number, os.strerror(number))
    return f"{name}: {text}" if name else text


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    passed = _PASSED_ON.search(str(error))
    return None if passed is None else int(passed[1])


def output_is_full() -> bool:
    """Whether standard output is a device, or a file on one, that takes nothing more.

    Python forgets what it could not write, so a second try would tell nothing.
    """
    try:
        state = os.fstat(1)
        if stat.S_ISCHR(state.st_mode):
            return state.st_rdev == _FULL
        return stat.S_ISREG(state.st_mode) and os.fstatvfs(1).f_bavail == 0
    except OSError:
        return False


@contextmanager
def place_named_by(key: str, place: object) -> Iterator[None]:
    """Turn the system's refusal of a place into a ConfigError that begins with the user's key."""
    try:
        yield
    except OSError as error:
        number = _number(error)
        text = _SENTENCES.get(number or 0, error.strerror or str(error))
        raise ConfigError(f"{key}={place}: {text}") from error


def drop_output() -> None:
    """Let nothing more be written to standard output, so that Python does not fail at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def standard_streams() -> str | None:
    """Make up for standard streams that are closed; returns a sentence if that is the output.

    Python has None for a closed stream, and the next file that is opened would get its number.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    was_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if was_closed:
        return "standard output is closed; send it to a file, or to /dev/null"
    return None
