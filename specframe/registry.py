"""One registry per axis: a word of the command line becomes a class.

A component is one file `specframe/<axis>/<name>.py` (or a plugin) that registers one class under
its own stem. There is no catalogue to edit: the module is imported when its word is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from specframe.errors import ConfigError, no_such_option

T = TypeVar("T")
C = TypeVar("C", bound=type)

NOT_COMPONENTS = frozenset({"base"})


@dataclass(frozen=True)
class Range:
    """The interval of a number, as in `Annotated[int, Range(1, 64)]`."""

    low: float | None = None  # None: no lower bound
    high: float | None = None
    low_open: bool = False  # True: `low` itself is not allowed
    high_open: bool = False
    hint: str = ""  # what to write instead of a number outside, for messages

    def __contains__(self, value: float) -> bool:
        # NaN is in no interval, since no comparison with it is true.
        above = self.low is None or (value > self.low if self.low_open else value >= self.low)
        below = self.high is None or (value < self.high if self.high_open else value <= self.high)
        return above and below and value == value

    def __str__(self) -> str:
        if None not in (self.low, self.high) and not (self.low_open or self.high_open):
            return f"{_plain(self.low)} .. {_plain(self.high)}"
        parts = []
        if self.low is not None:
            parts.append(f"{'>' if self.low_open else '>='} {_plain(self.low)}")
        if self.high is not None:
            parts.append(f"{'<' if self.high_open else '<='} {_plain(self.high)}")
        return " and ".join(parts) or "any number but NaN"


def _plain(bound: float | None) -> str:
    """0.0 is shown as 0: typing takes equal annotations as one, so either spelling may be here."""
    whole = isinstance(bound, float) and bound.is_integer()
    return str(int(bound) if whole else bound)  # type: ignore[arg-type]


class PluginSource(Protocol):
    """Where a registry looks for a component that the package itself does not have."""

    def bring(self, axis: str, name: str) -> None:
        """Import the plugin that has this component, if there is one."""

    def bring_all(self) -> None:
        """Import every plugin; what one raises is kept in `failures`."""

    def failures(self) -> Mapping[str, BaseException]:
        """What the plugins raised that could not be imported, by their places."""


@dataclass(frozen=True)
class _Entry(Generic[T]):
    cls: type[T]
    place: str  # file:line


class Registry(Generic[T]):
    """The classes of one axis by word. Like Python's imports, it belongs to the whole process."""

    _plugins: ClassVar[PluginSource | None] = None

    def __init__(self, axis: str, package: str) -> None:
        self.axis = axis  # the Hydra group, such as "drafter"
        self.package = package  # where the modules of its components are
        self._entries: dict[str, _Entry[T]] = {}

    @staticmethod
    def use_plugins(source: PluginSource | None) -> PluginSource | None:
        """Let every registry look for components in `source` too; returns the source before."""
        before, Registry._plugins = Registry._plugins, source
        return before

    @staticmethod
    def import_plugins() -> Mapping[str, BaseException]:
        """Import every plugin; returns what those raised that could not be imported, by place."""
        if Registry._plugins is None:
            return {}
        Registry._plugins.bring_all()
        return Registry._plugins.failures()

    def register(self, name: str) -> Callable[[C], C]:
        """A class decorator that makes a class the component of this word.

        Raises ValueError if the file has another name, the class is abstract or the word is taken.
        """
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"

        def decorate(cls: C) -> C:
            self._check(name, cls, place)
            self._entries[name] = _Entry(cls, place)
            return cls

        return decorate

    def _check(self, name: str, cls: type, place: str) -> None:
        title = f"{self.axis}={name} ({cls.__qualname__}, {place})"
        stem = _stem(cls)
        if stem is not None and stem != name:
            raise ValueError(f"{title}: the name must be the file's stem, {stem!r}")
        if inspect.isabstract(cls):
            missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
            raise ValueError(f"{title}: the class is abstract, it lacks {missing}")
        entry = self._entries.get(name)
        # The same class comes again if its module is reloaded, or imported again after a failure.
        if entry is not None and _identity(entry.cls) != _identity(cls):
            raise ValueError(f"{title}: already registered at {entry.place}")

    def get(self, name: str) -> type[T]:
        """The class of this word; its module is imported if need be.

        Raises ConfigError for a word that nobody registers.
        """
        if name not in self._entries and self._in_package(name):
            importlib.import_module(f"{self.package}.{name}")
        if name not in self._entries and Registry._plugins is not None:
            Registry._plugins.bring(self.axis, name)
        if name not in self._entries:
            failures = Registry.import_plugins()
            raise ConfigError(no_such_option(self.axis, name, self.names(), failures))
        return self._entries[name].cls

    def names(self) -> list[str]:
        """Every word of the axis, sorted. All its modules and all plugins are imported for it."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if module.name not in NOT_COMPONENTS:
                importlib.import_module(f"{self.package}.{module.name}")
        Registry.import_plugins()
        return sorted(self._entries)

    def place(self, name: str) -> str:
        """The `file:line` where a component was registered."""
        return self._entries[name].place

    def _in_package(self, name: str) -> bool:
        if not name.isidentifier() or name in NOT_COMPONENTS:
            return False
        return importlib.util.find_spec(f"{self.package}.{name}") is not None


def word_of(component: object) -> str:
    """The word of a component as its file spells it; its class where it has no file."""
    return _stem(type(component)) or type(component).__name__


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _stem(cls: type) -> str | None:
    """The name of the file of a class, or of its folder for `__init__.py`; None in a notebook."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:
        return None
    path = Path(file)
    return path.parent.name if path.stem == "__init__" else path.stem
