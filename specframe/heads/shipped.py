"""The heads that come with the package, and the trees that were calibrated for them.

`heads/<target>/<drafter>/` holds what task=train exports, and tree.json where a tree was planned.
Any key that takes a head, a vocabulary or a tree takes `shipped://<target>/<drafter>/...` too.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError, NoHead

SCHEME = "shipped://"
HEADS = Path(__file__).resolve().parent
_PACKAGED = "package://"  # the scheme of targets whose weights come in a package


def local_path(path: str) -> str:
    """The path of `shipped://...` in the file system; other paths stay as they are."""
    return str(HEADS / path.removeprefix(SCHEME)) if path.startswith(SCHEME) else path


def head_for(drafter: str, target: str) -> str:
    """The `shipped://` path of the head with which `drafter` drafts for a target.

    target: its name, `package://...` or a folder; a folder has a head where its weights are, to the
    digest, those that the head was trained for. Raises NoHead if there is none.
    """
    for folder in sorted(HEADS.glob(f"*/{drafter}")):
        if target == _PACKAGED + folder.parent.name or _trained_for(folder, Path(target)):
            return f"{SCHEME}{folder.parent.name}/{drafter}"
    if target.startswith((".", "/")) and not Path(target).exists():
        raise ConfigError(f"target.path={target}: no such folder")
    raise NoHead(
        f"drafter.path=null: no head ships for {target} with drafter={drafter}; give "
        "drafter.path=FOLDER or hub name, or train one with task=train, or use drafter=ngram or "
        "drafter=none"
    )


def _trained_for(head: Path, model: Path) -> bool:
    """Whether the weights in the folder `model` are those in a head's manifest."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        weights = json.loads((head / "manifest.json").read_text("utf-8"))["target"]["weights"]
        sizes: dict[str, int] = weights["bytes"]
        # A file of another size is not read.
        if len(sizes) == 1 and all((model / name).stat().st_size == sizes[name] for name in sizes):
            return _digest(model, next(iter(sizes))) == weights["sha256"]
    return False


def _digest(model: Path, name: str) -> Any:
    """sha256 of a file of weights: as its conversion recorded it, else computed."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        record = json.loads((model / "specframe.json").read_text("utf-8"))
        if record["files"][name] == (model / name).stat().st_size:
            return record["weights_sha256"]
    with (model / name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
