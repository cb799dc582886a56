"""Home of plugin modules: `specframe.ext.<folder>` is looked up in the plugin directories.

An ordinary package path, so a plugin's classes pickle and a worker process finds them again.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def plugin_dirs() -> list[Path]:
    """Existing directories that hold plugin folders, in order of precedence, each once."""
    shipped = PACKAGE / "_plugins"  # in a wheel
    if not shipped.is_dir() and (PACKAGE.parent / "conf" / "config.yaml").is_file():
        shipped = PACKAGE.parent / "plugins"  # in a checkout
    named = os.environ.get("SPECFRAME_PLUGINS", "").split(os.pathsep)
    wanted = [shipped, Path("plugins"), *(Path(entry).expanduser() for entry in named if entry)]
    return list(dict.fromkeys(path.resolve() for path in wanted if path.is_dir()))


__path__ = [str(path) for path in plugin_dirs()]
