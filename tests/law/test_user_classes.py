"""A user's own class is checked to be of the right kind before anything of it is called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specframe.compose.build import load
from specframe.errors import ConfigError
from specframe.law.user_classes import user_class, user_object

CODE = """
import torch
from transformers import LogitsProcessor, StoppingCriteria

class Plain:
    def __call__(self, ids, scores, **more):
        return scores

class Derived(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores

class Empty(LogitsProcessor):
    pass

class Wants:
    def __init__(self, level):
        self.level = level
    def __call__(self, ids, scores):
        return scores

class Narrow:
    def __call__(self, ids):
        return ids

class Raises(Plain):
    def __init__(self):
        raise RuntimeError("no")

made = Plain()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of a user's classes."""
    name = f"classes_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    (tmp_path / f"{name}_broken.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("name", ["Plain", "Derived"])
def test_classes_of_the_kind_are_made(module: str, name: str) -> None:
    made = user_object(f"{module}:{name}", where="sampling.processors", base="LogitsProcessor")
    assert type(made).__name__ == name and made(1, 2) == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("made", ":made: it is a Plain, not a class; give a class derived from transformers' Lo"),
        ("Empty", ":Empty: its objects cannot be called so; give a class derived from"),
        ("Narrow", ":Narrow: its objects cannot be called so; give a class derived from"),
        ("Wants", ":Wants: it cannot be made without arguments; give a class of your own"),
    ],
)
def test_another_kind_is_named(module: str, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^sampling.processors={module}{text}"):
        user_class(f"{module}:{name}", where="sampling.processors", base="LogitsProcessor")


def test_what_a_users_code_raises_is_one_line(module: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be made .RuntimeError: no.; mend its __init__"):
        user_object(f"{module}:Raises", where="stop.criteria", base="StoppingCriteria")
    with pytest.raises(ConfigError, match=r"cannot import it .ZeroDivisionError: division by zero"):
        user_class(f"{module}_broken:It", where="stop.criteria", base="StoppingCriteria")


@pytest.mark.parametrize("key", ["sampling.processors", "stop.criteria"])
@pytest.mark.parametrize("path", ["os:system", "subprocess:Popen", "functools:partial", "os:name"])
def test_nothing_else_is_ever_called(key: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*args: object, **more: object) -> None:
        pytest.fail(f"{path} was called")

    if path == "os:system":
        monkeypatch.setattr(os, "system", called)
    with pytest.raises(
        ConfigError, match=f"{key}={path}: (it is a|its objects cannot be|it cannot be made)"
    ):
        load(["target=toy", "drafter=none", f"{key}=[{path}]"])
