"""The law of one word: registry key = file stem = YAML = test file, on every axis.

A tracker is a callback of Hydra's and has no registry: its word is the file that its YAML names.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from specframe.compose import catalogue
from specframe.compose.axes import AXES
from specframe.plugins import bootstrap
from specframe.train.base import RECIPES

ROOT = Path(__file__).resolve().parents[1]
REGISTRIES = {**AXES, "train": RECIPES}
TRACKERS = sorted(
    file.stem for file in (ROOT / "specframe/tracker").glob("*.py") if file.stem[0] != "_"
)
WORDS = [(axis, word) for axis, registry in REGISTRIES.items() for word in registry.names()]
WORDS += [("tracker", word) for word in TRACKERS if word != "base"]
PRESETS = ("target", "data", "tree")  # axes whose YAML may be a preset of another component
GROUPS = (*REGISTRIES, "tracker", "experiment", "hydra")


def options(axis: str) -> list[str]:
    """The words that the command line takes."""
    with catalogue.configuration() as loader:
        return catalogue.options(loader, axis)


def name_of(axis: str, option: str) -> str:
    """The component that an option is for."""
    if axis == "tracker":
        text = (ROOT / "conf" / axis / f"{option}.yaml").read_text(encoding="utf-8")
        (callback,) = yaml.safe_load(text).values()
        return str(callback["_target_"]).split(".")[-2]
    with catalogue.configuration() as loader:
        return str(catalogue.schema(loader, axis, option)["name"])


def home(axis: str, word: str) -> Path:
    """The file of a component, or the folder where it needs several."""
    if axis == "tracker":
        return ROOT / "specframe" / axis / f"{word}.py"
    file = Path(REGISTRIES[axis].place(word).rpartition(":")[0])
    return file.parent if file.stem == "__init__" else file


@pytest.mark.parametrize(("axis", "word"), WORDS)
def test_one_word(axis: str, word: str) -> None:
    file = home(axis, word)
    assert file.stem == word
    assert word in options(axis), f"{axis}/{word}.yaml is missing"
    assert name_of(axis, word) == word
    own = ROOT / "specframe"
    if own in file.parents:
        assert file in (own / axis / f"{word}.py", own / axis / word)
        assert (ROOT / "conf" / axis / f"{word}.yaml").is_file()
        assert (ROOT / "tests" / axis / f"test_{word}.py").is_file(), "a component has its test"
    else:
        assert (file.parent / "conf" / axis / f"{word}.yaml").is_file()
        tests = [file.parent / f"test_{stem}.py" for stem in (word, file.parent.name)]
        assert any(test.is_file() for test in tests), "a plugin has its test"


@pytest.mark.parametrize("axis", REGISTRIES)
def test_every_option_is_a_component_or_a_preset_of_one(axis: str) -> None:
    names = REGISTRIES[axis].names()
    for option in options(axis):
        name = name_of(axis, option)
        assert name in names, f"{axis}/{option}.yaml names no component"
        assert option == name or axis in PRESETS, f"{axis} has no presets"
    assert set(names) <= set(options(axis))


def test_words_are_plain() -> None:
    for axis, word in WORDS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", word), f"{axis}={word}"
        assert not re.search(r"_(v\d+|new|legacy|old)$", word)


@pytest.mark.parametrize("axis", [*REGISTRIES, "tracker"])
def test_an_axis_folder_holds_words_and_its_contract(axis: str) -> None:
    folder = ROOT / "specframe" / axis
    words = set(options(axis)) | {"base", "__init__", "README", "__pycache__"}
    for entry in folder.iterdir():
        assert entry.stem in words, f"{entry} is no word of {axis}"
        if entry.is_dir() and entry.stem != "__pycache__":
            assert (entry / "__init__.py").is_file(), entry


@pytest.mark.parametrize("axis", [*REGISTRIES, "tracker"])
def test_the_readme_of_an_axis_names_every_word(axis: str) -> None:
    readme = ROOT / "specframe" / axis / "README.md"
    ours = [
        word for of, word in WORDS if of == axis and ROOT / "specframe" in home(of, word).parents
    ]
    if readme.is_file():
        text = readme.read_text(encoding="utf-8")
        assert not [word for word in ours if f"`{word}`" not in text]


def test_the_top_of_the_package_is_short() -> None:
    assert len(list((ROOT / "specframe").glob("*.py"))) <= 10


@pytest.mark.parametrize("folder", ["conf", "tests"])
def test_folders_are_spelt_like_the_groups(folder: str) -> None:
    present = {path.name for path in (ROOT / folder).iterdir() if path.is_dir()} - {"__pycache__"}
    rooms = {path.name for path in (ROOT / "specframe").iterdir() if path.is_dir()}
    known = set(GROUPS) | ({"golden"} | rooms if folder == "tests" else set())
    assert present <= known, present - known
    assert {*REGISTRIES, "tracker"} <= present


def test_every_plugin_has_its_conf_and_its_readme() -> None:
    for plugin in bootstrap().plugins:
        folder = Path(plugin.place)
        if ROOT not in folder.parents:
            continue
        assert (folder / "README.md").is_file(), plugin.name
        assert list(folder.glob("test_*.py")), plugin.name
        assert plugin.conf is not None
