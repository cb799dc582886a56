"""Modules of a user's own, such as processors, where Python finds them."""

from __future__ import annotations

from pathlib import Path

import pytest


def written(source: str, *, stem: str, folder: Path, patch: pytest.MonkeyPatch) -> str:
    """The name of a module of this source, which no other test has."""
    name = f"{stem}_{folder.name}"
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    patch.syspath_prepend(str(folder))
    return name
