"""A registry maps words to classes, and its errors teach."""

from __future__ import annotations

import abc
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from specframe.errors import ConfigError
from specframe.registry import Registry

COMPONENT = """
from {package}.base import REG
@REG.register("{name}")
class It:
    pass
"""


class Plugins:
    """A plugin source that brings one component and knows of one failure."""

    def __init__(self, registry: Registry[Any]) -> None:
        self.registry = registry

    def bring(self, axis: str, name: str) -> None:
        if (axis, name) == ("axis", "outside"):
            _register(self.registry, "outside")

    def bring_all(self) -> None:
        pass

    def failures(self) -> Mapping[str, BaseException]:
        return {"broken": ImportError("No module named 'nope'")}


def _register(registry: Registry[Any], name: str) -> type:
    """Registers a class without a file, as a notebook does."""
    cls = type(name, (), {"__module__": "notebook"})
    return registry.register(name)(cls)


@pytest.fixture
def registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Registry[Any]]:
    """A package of its own with components `left` and `right`, a helper module and one broken."""
    package = f"axis_{abs(hash(request.node.nodeid))}"
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    base = "from specframe.registry import Registry\nREG = Registry('axis', {!r})\n"
    (folder / "base.py").write_text(base.format(package))
    (folder / "builder.py").write_text("")
    for name in ("left", "right"):
        (folder / f"{name}.py").write_text(COMPONENT.format(package=package, name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = Registry.use_plugins(None)
    yield __import__(f"{package}.base", fromlist=["REG"]).REG
    Registry.use_plugins(before)
    for module in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[module]


def test_get_imports_only_what_is_asked_for(registry: Registry[Any]) -> None:
    assert registry.get("left").__name__ == "It"
    assert f"{registry.package}.left" in sys.modules
    assert f"{registry.package}.right" not in sys.modules
    assert registry.get("left") is registry.get("left")


def test_names_are_sorted_and_leave_out_base_and_modules_without_a_component(
    registry: Registry[Any],
) -> None:
    assert registry.names() == ["left", "right"]


@pytest.mark.parametrize("word", ["lefft", "base", "builder", "a.b", ""])
def test_unknown_word_lists_the_options(registry: Registry[Any], word: str) -> None:
    with pytest.raises(ConfigError, match=r"no such option\. Available: left, right\.") as caught:
        registry.get(word)
    assert ("Did you mean 'left'?" in str(caught.value)) == (word == "lefft")


def test_plugins_are_asked_last_and_failures_are_named(registry: Registry[Any]) -> None:
    Registry.use_plugins(Plugins(registry))
    assert registry.get("outside").__name__ == "outside"
    with pytest.raises(ConfigError, match="Plugin not loaded: broken: ImportError: No module"):
        registry.get("nothing")


def test_name_must_be_the_stem_of_the_file(registry: Registry[Any]) -> None:
    with pytest.raises(ValueError, match=r"must be the file's stem, 'test_registry'"):

        @registry.register("other")
        class Wrong:
            pass


def test_abstract_class_is_refused(registry: Registry[Any]) -> None:
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def expand(self) -> None: ...

    with pytest.raises(ValueError, match="abstract, it lacks expand"):
        registry.register("test_registry")(Abstract)


def test_duplicate_names_both_places(registry: Registry[Any], tmp_path: Path) -> None:
    registry.get("left")
    (tmp_path / "elsewhere").mkdir()
    source = COMPONENT.format(package=registry.package, name="left")
    (tmp_path / "elsewhere" / "left.py").write_text(textwrap.dedent(source))
    with pytest.raises(ValueError, match=r"elsewhere/left\.py:\d+\).*already registered at") as err:
        __import__("elsewhere.left")
    assert f"{registry.package}/left.py:3" in str(err.value)


def test_a_module_that_failed_half_way_may_be_imported_again(registry: Registry[Any]) -> None:
    path = Path(sys.modules[registry.package].__path__[0]) / "late.py"
    source = COMPONENT.format(package=registry.package, name="late")
    path.write_text(source + "import nope_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="nope_not_there"):
        registry.get("late")  # the original error, not "no such option"
    path.write_text(source)
    sys.modules.pop(f"{registry.package}.late", None)
    assert registry.get("late").__name__ == "It"
