"""Files that appear whole or not at all, so that a reader or a crash never sees half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it is moved there at the end of the block.

    After an error, or an interrupt, nothing is left behind, and what was at `path` stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    with whole_file(path) as partial:
        partial.write_bytes(data)
