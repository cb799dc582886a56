"""Home of plugin modules: `specframe.ext.<folder>` is looked up in the plugin directories.

An ordinary package path, so a plugin's classes pickle and a worker process finds them again.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def plugin_dirs() -> list[Path]:
    """Existing directories that hold plugin folders, in order of precedence, each once.

    Those of the package come first, then `plugins/` of the working directory, then what
    $SPECFRAME_PLUGINS names.
    """
    shipped = PACKAGE / "_plugins"  # in a wheel
    if not shipped.is_dir() and (PACKAGE.parent / "conf" / "config.yaml").is_file():
        shipped = PACKAGE.parent / "plugins"  # in a checkout
    wanted = [shipped, Path("plugins"), *named_dirs()]
    return list(dict.fromkeys(path.resolve() for path in wanted if path.is_dir()))


def named_dirs() -> list[Path]:
    """What $SPECFRAME_PLUGINS names, in its order, folder or not."""
    named = os.environ.get("SPECFRAME_PLUGINS", "").split(os.pathsep)
    return [Path(entry).expanduser() for entry in named if entry]


__path__ = [str(path) for path in plugin_dirs()]
