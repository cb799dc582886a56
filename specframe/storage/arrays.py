"""Arrays of a .npz file that a user names, or one line that says what is wrong with it."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError, describe_error


def read_arrays(path: Path, names: Sequence[str], *, place: str, contents: str) -> dict[str, Any]:
    """The arrays of these names, or all for no names.

    place: how the user named the file; contents: what it should hold. Both are for messages.
    Raises ConfigError for a file that cannot be read, or that lacks one of the names.
    """
    import numpy as np

    try:
        if not zipfile.is_zipfile(path):  # NumPy would speak of pickles
            raise ValueError("it is no archive of arrays")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names or file.files}
    except Exception as error:  # a damaged archive may raise anything, a MemoryError too
        reason = describe_error(error)
        raise ConfigError(f"{place}: not {contents} ({reason}); give another file") from None


def check_integers(arrays: dict[str, Any], *, place: str, contents: str) -> None:
    """Raises ConfigError unless all of these are lists of whole numbers that are not negative."""
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
            raise ConfigError(
                f"{place}: not {contents} (`{name}` is no list of whole numbers from 0); give "
                "another file"
            )
