"""data=file: the user's own file, as prompts= would take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.data.file import File
from specframe.errors import ConfigError


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc\n", encoding="utf-8")
    assert File(path=str(path)).file() == path
    with pytest.raises(ConfigError, match=r"data.path=.*nowhere: no such file"):
        File(path=str(tmp_path / "nowhere")).file()


def test_prompts_are_given_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc\n", encoding="utf-8")
    words = ["target=toy", "data=file", f"data.path={path}"]
    assert plan(compose(words)).prompts() == path
    assert plan(compose(["target=toy", f"prompts={path}"])).prompts() == path
    assert plan(compose(["target=toy"])).prompts() is None
    for word in ("prompt=abc", "prompts=builtin"):
        with pytest.raises(ConfigError, match="keep one"):
            plan(compose([*words, word]))
