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
    """Allowed interval of a number; None is open-ended, bounds are inclusive unless `*_open`."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        # Said positively, so that NaN is in no interval.
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
    """0.0 reads as 0: typing takes equal annotations as one, so the first spelling would win."""
    whole = isinstance(bound, float) and bound.is_integer()
    return str(int(bound) if whole else bound)  # type: ignore[arg-type]


class PluginSource(Protocol):
    """What a registry asks when the package itself has no such component (see `plugins.py`)."""

    def bring(self, axis: str, name: str) -> None:
        """Import the plugin that brings this component, if there is one."""

    def bring_all(self) -> None:
        """Import every plugin; one that fails is remembered, not raised."""

    def failures(self) -> Mapping[str, BaseException]:
        """Plugins that did not import, by name."""


@dataclass(frozen=True)
class _Entry(Generic[T]):
    cls: type[T]
    place: str  # file:line


class Registry(Generic[T]):
    """The classes of one axis by word.

    axis: the Hydra group, such as "drafter"; package: where its modules are.
    """

    plugins: ClassVar[PluginSource | None] = None

    def __init__(self, axis: str, package: str) -> None:
        self.axis = axis
        self.package = package
        self._entries: dict[str, _Entry[T]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator; raises ValueError for a wrong stem, an abstract class or a duplicate."""
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
        # The same class again is a module imported again after a failure, or reloaded.
        if entry is not None and _identity(entry.cls) != _identity(cls):
            raise ValueError(f"{title}: already registered at {entry.place}")

    def get(self, name: str) -> type[T]:
        """The class of this word, importing its module if need be; ConfigError if unknown."""
        if name not in self._entries and self._in_package(name):
            importlib.import_module(f"{self.package}.{name}")
        if name not in self._entries and Registry.plugins is not None:
            Registry.plugins.bring(self.axis, name)
        if name not in self._entries:
            names = self.names()
            failures = Registry.plugins.failures() if Registry.plugins else {}
            raise ConfigError(no_such_option(self.axis, name, names, failures))
        return self._entries[name].cls

    def names(self) -> list[str]:
        """Every word of the axis, sorted; imports all its modules and the plugins."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if module.name not in NOT_COMPONENTS:
                importlib.import_module(f"{self.package}.{module.name}")
        if Registry.plugins is not None:
            Registry.plugins.bring_all()
        return sorted(self._entries)

    def place(self, name: str) -> str:
        """`file:line` of a registered component."""
        return self._entries[name].place

    def _in_package(self, name: str) -> bool:
        if not name.isidentifier() or name in NOT_COMPONENTS:
            return False
        return importlib.util.find_spec(f"{self.package}.{name}") is not None


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _stem(cls: type) -> str | None:
    """Stem of the file of a class, a package's folder for its `__init__`; None in a notebook."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:
        return None
    path = Path(file)
    return path.parent.name if path.stem == "__init__" else path.stem
