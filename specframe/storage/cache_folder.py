"""The folder of files that are computed once and read by later runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$SPECFRAME_CACHE`, else `specframe` in the user's cache; it may not exist yet.

    Converted models, prompt suites, look-up structures and compiled kernels lie there. All of them
    are computed or fetched again if the folder is lost.
    """
    if chosen := os.environ.get("SPECFRAME_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "specframe"
