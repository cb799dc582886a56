"""A folder in a plugin directory brings a component; a broken one harms nobody."""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specframe import ext
from specframe.compose.catalogue import configuration, options
from specframe.errors import ConfigError
from specframe.plugins import PluginSet, bootstrap
from specframe.registry import Registry
from tests.commands import Command

REGISTRY: Registry[object] = Registry("drafter", "nowhere_at_all")
SOURCE = """
from tests_registry_of_plugins import REGISTRY
@REGISTRY.register("{name}")
class Component:
    pass
"""
Drop = Callable[..., Path]


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drop]:
    """Makes plugin folders; `directory` is one of two that $SPECFRAME_PLUGINS names."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setenv("SPECFRAME_PLUGINS", os.pathsep.join(map(str, folders)))
    monkeypatch.chdir(tmp_path)
    registries = type(sys)("tests_registry_of_plugins")
    monkeypatch.setitem(sys.modules, registries.__name__, registries)
    monkeypatch.setattr(registries, "REGISTRY", REGISTRY, raising=False)
    monkeypatch.setattr(REGISTRY, "_entries", {})
    monkeypatch.setattr(REGISTRY, "names", lambda: sorted(REGISTRY._entries))
    monkeypatch.setattr(REGISTRY, "_in_package", lambda name: False)

    def make(
        name: str, source: str = SOURCE, *, directory: str = "one", file: str = "", yaml: str = ""
    ) -> Path:
        folder = tmp_path / directory / name
        (folder / "conf" / "drafter").mkdir(parents=True)
        (folder / f"{file or name}.py").write_text(source.format(name=name))
        (folder / "conf" / "drafter" / f"{yaml or name}.yaml").write_text(f"name: {name}\n")
        return folder

    yield make
    for module in [module for module in sys.modules if module.startswith("specframe.ext.")]:
        del sys.modules[module]
    monkeypatch.undo()
    bootstrap()  # as it was


def test_a_folder_is_found_and_its_python_waits_until_asked_for(drop: Drop) -> None:
    drop("alpha")
    drop("beta", directory="two")
    found = bootstrap()
    assert {"alpha", "beta"} <= {plugin.name for plugin in found.plugins}
    with configuration() as loader:
        assert {"alpha", "beta"} <= set(options(loader, "drafter"))
    assert "specframe.ext.alpha.alpha" not in sys.modules
    assert REGISTRY.get("alpha").__module__ == "specframe.ext.alpha.alpha"
    assert "specframe.ext.beta.beta" not in sys.modules


def test_classes_of_a_plugin_pickle(drop: Drop) -> None:
    drop("alpha")
    bootstrap()
    cls = REGISTRY.get("alpha")
    assert pickle.loads(pickle.dumps(cls)) is cls


@pytest.mark.usefixtures("drop")
def test_a_worker_process_finds_plugin_modules_by_itself(tmp_path: Path) -> None:
    (tmp_path / "one" / "gamma").mkdir(parents=True)
    (tmp_path / "one" / "gamma" / "gamma.py").write_text("VALUE = 3\n")
    code = "from specframe.ext.gamma import gamma; print(gamma.VALUE)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ext.PACKAGE.parent)},
        check=False,
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_init_and_option_modules_are_imported(drop: Drop) -> None:
    drop("alpha", file="__init__")
    folder = drop("pack", source="")
    (folder / "second.py").write_text(SOURCE.format(name="second"))
    (folder / "conf" / "drafter" / "second.yaml").write_text("name: second\n")
    bootstrap()
    assert REGISTRY.get("alpha").__module__ == "specframe.ext.alpha"
    assert REGISTRY.get("second").__module__ == "specframe.ext.pack.second"


def test_a_broken_plugin_is_named_only_when_asked_for(drop: Drop) -> None:
    drop("alpha")
    folder = drop("broken", "import nope_not_there\n")
    bootstrap()
    assert REGISTRY.get("alpha")
    with pytest.raises(ConfigError, match=r"drafter=broken: plugin .*ModuleNotFoundError.*nope_no"):
        REGISTRY.get("broken")
    with pytest.raises(ConfigError, match=rf"no such option.*Plugin not loaded: {folder}"):
        REGISTRY.get("alhpa")


def test_a_plugin_that_exits_does_not_end_the_program(drop: Drop) -> None:
    drop("rude", "raise SystemExit(3)\n")
    with pytest.raises(ConfigError, match="SystemExit: 3"):
        bootstrap().bring("drafter", "rude")


def test_a_preset_of_a_plugin_finds_its_component(drop: Drop) -> None:
    drop("alpha", yaml="alpha_big")
    bootstrap()
    assert REGISTRY.get("alpha")


def test_folders_that_are_no_plugins_are_passed_over(drop: Drop, tmp_path: Path) -> None:
    drop("alpha")
    for name in ("not-a-name", "_private", "empty"):
        (tmp_path / "one" / name).mkdir()
    (tmp_path / "one" / "README.md").write_text("")
    names = {plugin.name for plugin in bootstrap().plugins}
    assert "alpha" in names
    assert names.isdisjoint({"not-a-name", "_private", "empty", "README.md"})


def test_the_first_directory_wins(drop: Drop) -> None:
    first = drop("alpha")
    drop("alpha", directory="two")
    places = [plugin.place for plugin in bootstrap().plugins if plugin.name == "alpha"]
    assert places == [str(first)]


def test_plugins_of_the_working_directory_count(drop: Drop) -> None:
    drop("local", directory="plugins")
    assert "local" in {plugin.name for plugin in bootstrap().plugins}


def test_plugins_of_the_working_directory_win_over_named_folders(drop: Drop) -> None:
    named = drop("alpha")
    here = drop("alpha", directory="plugins")
    drop("beta", directory="two")
    places = {plugin.name: plugin.place for plugin in bootstrap().plugins}
    assert places["alpha"] == str(here) != str(named)
    assert places["beta"].endswith("two/beta")
    assert REGISTRY.get("alpha")
    assert sys.modules["specframe.ext.alpha.alpha"].__file__ == str(here / "alpha.py")


@pytest.mark.usefixtures("drop")
@pytest.mark.parametrize(
    ("name", "what"), [("nowhere", "does not exist"), ("one.txt", "is a file")]
)
def test_what_is_named_must_be_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, name: str, what: str
) -> None:
    (tmp_path / "one.txt").write_text("")
    folder = tmp_path / name
    monkeypatch.setenv("SPECFRAME_PLUGINS", os.pathsep.join([str(tmp_path / "one"), str(folder)]))
    answer = command("target=toy", "drafter=none", "prompt=abc")
    assert answer.code == 2
    assert answer.err == (
        f"specframe: error: $SPECFRAME_PLUGINS={folder}: this {what}; name folders that hold "
        "plugin folders, with ':' between them, or unset it\n"
    )
    assert not (tmp_path / "outputs").exists()


def test_bootstrap_twice_changes_nothing(drop: Drop) -> None:
    drop("alpha")
    assert bootstrap() is bootstrap()


@pytest.mark.parametrize("module", ["third_party", "third_party_missing"])
def test_an_installed_package_is_a_plugin(
    drop: Drop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    package = tmp_path / "site" / "third_party"
    (package / "conf" / "drafter").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from tests_registry_of_plugins import REGISTRY\n"
        "REGISTRY.register('third_party')(type('It', (), {'__module__': __name__}))\n"
    )
    (package / "conf" / "drafter" / "third_party.yaml").write_text("name: third_party\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    point = importlib.metadata.EntryPoint("third", module, "specframe.plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    found = bootstrap()
    if module == "third_party":
        assert REGISTRY.get("third_party")
        with configuration() as loader:
            assert "third_party" in options(loader, "drafter")
    else:
        with pytest.raises(ConfigError, match=r"third \(third_party_missing\): ModuleNotFound"):
            REGISTRY.get("third_party")
        assert isinstance(found, PluginSet)
