"""Plugins: one folder per outside component, with its own conf and its own test.

A folder `<name>/` in a plugin directory holds `<name>.py` (or `__init__.py`), `conf/<axis>/*.yaml`
and `test_<name>.py`. Its YAML joins Hydra's search path at once; its Python is imported only when
one of its components is asked for, so a broken plugin harms nobody until it is selected. An
installed package does the same with an entry point of the group "specframe.plugins".
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from specframe import ext
from specframe.errors import ConfigError, describe_error
from specframe.registry import Registry

ENTRY_POINTS = "specframe.plugins"


@dataclass(frozen=True)
class Plugin:
    """One plugin."""

    name: str
    place: str  # a folder, or the entry point
    modules: tuple[str, ...]  # what has to be imported to register its components
    conf: Path | None  # the folder of its YAML files

    def offers(self, axis: str, name: str) -> bool:
        """Whether its conf has the option `axis=name`."""
        return self.conf is not None and (self.conf / axis / f"{name}.yaml").is_file()


@dataclass
class PluginSet:
    """The plugins that the directories held at one moment; each is imported at most once."""

    plugins: tuple[Plugin, ...]
    loaded: set[str] = field(default_factory=set)  # places of those that are imported
    failed: dict[str, BaseException] = field(default_factory=dict)  # place -> what it raised

    def bring(self, axis: str, name: str) -> None:
        """Import the plugin whose conf has `axis=name`, or all plugins if none has.

        Raises ConfigError, with the plugin's own exception as cause, if that plugin is broken.
        """
        offering = [plugin for plugin in self.plugins if plugin.offers(axis, name)]
        for plugin in offering:
            exc = self._load(plugin)
            if exc is not None:
                text = f"{axis}={name}: plugin {plugin.place} did not load: {describe_error(exc)}"
                raise ConfigError(text) from exc
        if not offering:
            self.bring_all()

    def bring_all(self) -> None:
        """Import every plugin."""
        for plugin in self.plugins:
            self._load(plugin)

    def failures(self) -> Mapping[str, BaseException]:
        """What the plugins raised that could not be imported, by their places."""
        return self.failed

    def _load(self, plugin: Plugin) -> BaseException | None:
        if plugin.place in self.loaded:
            return None
        try:
            for module in plugin.modules:
                importlib.import_module(module)
        # Whatever a plugin raises, a SystemExit included, must not end a run without that plugin.
        except (Exception, SystemExit) as exc:
            self.failed[plugin.place] = exc
            return exc
        self.failed.pop(plugin.place, None)
        self.loaded.add(plugin.place)
        return None


class SpecframeSearchPath(SearchPathPlugin):
    """Adds the conf folder of every plugin to Hydra's search path, after the project's own."""

    first: ClassVar[tuple[str, ...]] = ()  # folders of --config-dir, set by `configuration`

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it builds a search path."""
        for folder in self.first:
            search_path.prepend("command-line", f"file://{folder}")
        for plugin in bootstrap().plugins:
            if plugin.conf is not None:
                search_path.append(f"plugin-{plugin.name}", f"file://{plugin.conf}")


def bootstrap() -> PluginSet:
    """Find the plugins and make them known to Hydra and the registries; safe to repeat.

    While the directories hold the same plugins, the same `PluginSet` is returned. Raises
    ConfigError where $SPECFRAME_PLUGINS names something else than folders.
    """
    for folder in ext.named_dirs():
        if not folder.is_dir():
            what = "is a file" if folder.is_file() else "does not exist"
            raise ConfigError(
                f"$SPECFRAME_PLUGINS={folder}: this {what}; name folders that hold plugin folders, "
                f"with {os.pathsep!r} between them, or unset it"
            )
    ext.__path__ = [str(path) for path in ext.plugin_dirs()]
    plugins = _plugin_set(tuple(_discover()))
    Registry.use_plugins(plugins)
    Plugins.instance().register(SpecframeSearchPath)
    return plugins


@lru_cache(maxsize=1)
def _plugin_set(plugins: tuple[Plugin, ...]) -> PluginSet:
    importlib.invalidate_caches()  # a folder may be new since Python looked
    return PluginSet(plugins)


def _discover() -> Iterator[Plugin]:
    seen = set()
    for directory in ext.plugin_dirs():
        for folder in sorted(directory.iterdir()):
            # The first directory wins, as it does for Python's own imports.
            if _is_plugin(folder) and folder.name not in seen:
                seen.add(folder.name)
                yield _from_folder(folder)
    for point in _entry_points(tuple(sys.path), tuple(map(_changed, sys.path))):
        yield _from_entry_point(point)


@lru_cache(maxsize=1)
def _entry_points(
    places: tuple[str, ...], changed: tuple[int, ...]
) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Those of installed packages; read anew when a folder of Python's path has changed."""
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINTS))


def _changed(place: str) -> int:
    """When something was last added to a folder or removed from it, in nanoseconds."""
    try:
        return Path(place or ".").stat().st_mtime_ns
    except OSError:
        return 0


def _is_plugin(folder: Path) -> bool:
    name = folder.name
    if not folder.is_dir() or not name.isidentifier() or name.startswith("_"):
        return False
    own = ("conf", f"{name}.py", "__init__.py")
    return any((folder / entry).exists() for entry in own)


def _from_folder(folder: Path) -> Plugin:
    conf = folder / "conf"
    # Beside the folder's own module, one for each option that has a module of its name.
    stems = [folder.name, *sorted(file.stem for file in conf.glob("*/*.yaml"))]
    modules = [stem for stem in dict.fromkeys(stems) if (folder / f"{stem}.py").is_file()]
    package = f"{ext.__name__}.{folder.name}"
    return Plugin(
        name=folder.name,
        place=str(folder),
        modules=(package, *(f"{package}.{module}" for module in modules)),
        conf=conf if conf.is_dir() else None,
    )


def _from_entry_point(point: importlib.metadata.EntryPoint) -> Plugin:
    conf = None
    try:
        spec = importlib.util.find_spec(point.module)
    except (ImportError, ValueError):
        spec = None  # the import will say so when the plugin is asked for
    if spec is not None and spec.origin is not None:
        conf = Path(spec.origin).parent / "conf"
    return Plugin(
        name=point.name,
        place=f"{point.name} ({point.value})",
        modules=(point.module,),
        conf=conf if conf is not None and conf.is_dir() else None,
    )
