"""The law of one word: registry key = file stem = YAML = test file, for every component."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specframe import catalogue
from specframe.axes import AXES
from specframe.plugins import bootstrap

ROOT = Path(__file__).resolve().parents[1]
WORDS = [(axis, word) for axis, registry in AXES.items() for word in registry.names()]
PRESETS = ("target", "data", "tree")  # axes whose YAML may be a preset of another component
GROUPS = (*AXES, "experiment", "hydra", "train")


def options(axis: str) -> list[str]:
    """The words that the command line takes."""
    with catalogue.configuration() as loader:
        return catalogue.options(loader, axis)


def name_of(axis: str, option: str) -> str:
    """The `name:` of an option."""
    with catalogue.configuration() as loader:
        return str(catalogue.schema(loader, axis, option)["name"])


def home(axis: str, word: str) -> Path:
    """The file that holds a component's class."""
    return Path(AXES[axis].place(word).rpartition(":")[0])


@pytest.mark.parametrize(("axis", "word"), WORDS)
def test_one_word(axis: str, word: str) -> None:
    file = home(axis, word)
    assert file.stem == word
    assert word in options(axis), f"{axis}/{word}.yaml is missing"
    assert name_of(axis, word) == word
    own = ROOT / "specframe"
    if own in file.parents:
        assert file == own / axis / f"{word}.py"
        assert (ROOT / "conf" / axis / f"{word}.yaml").is_file()
        assert (ROOT / "tests" / axis / f"test_{word}.py").is_file(), "a component has its test"
    else:
        assert (file.parent / "conf" / axis / f"{word}.yaml").is_file()
        tests = [file.parent / f"test_{stem}.py" for stem in (word, file.parent.name)]
        assert any(test.is_file() for test in tests), "a plugin has its test"


@pytest.mark.parametrize("axis", AXES)
def test_every_option_is_a_component_or_a_preset_of_one(axis: str) -> None:
    names = AXES[axis].names()
    for option in options(axis):
        name = name_of(axis, option)
        assert name in names, f"{axis}/{option}.yaml names no component"
        assert option == name or axis in PRESETS, f"{axis} has no presets"
    assert set(names) <= set(options(axis))


def test_words_are_plain() -> None:
    for axis, word in WORDS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", word), f"{axis}={word}"
        assert not re.search(r"_(v\d+|new|legacy|old)$", word)


@pytest.mark.parametrize("folder", ["conf", "specframe", "tests"])
def test_folders_are_spelt_like_the_groups(folder: str) -> None:
    held = {path.name for path in (ROOT / folder).iterdir() if path.is_dir()}
    held -= {"__pycache__"}
    others = {"conf": {*GROUPS}, "specframe": {"ext", "heads"}, "tests": {"golden"}}[folder]
    known = {*AXES, *others, "checkpoint", "data", "train", "report", "tracker"}
    assert held <= known, held - known
    assert set(AXES) <= held


def test_every_plugin_has_its_conf_and_its_readme() -> None:
    for plugin in bootstrap().plugins:
        folder = Path(plugin.place)
        if ROOT not in folder.parents:
            continue
        assert (folder / "README.md").is_file(), plugin.name
        assert list(folder.glob("test_*.py")), plugin.name
        assert plugin.conf is not None
