"""What can be chosen: where conf/ is, its groups (the axes), their options and YAML files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

from specframe.errors import ConfigError
from specframe.plugins import SpecframeSearchPath, bootstrap

PACKAGE = Path(__file__).resolve().parents[1]
CONFIG_NAME = "config"


def conf_dir() -> Path:
    """The absolute folder of the configuration: inside a wheel, or beside it in a checkout."""
    places = [PACKAGE / "conf", PACKAGE.parent / "conf"]
    for place in places:
        if (place / f"{CONFIG_NAME}.yaml").is_file():
            return place
    raise FileNotFoundError(f"no {CONFIG_NAME}.yaml in {places[0]} or {places[1]}: install again")


def hydra_version_args(function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments that depend on Hydra's version.

    1.3 wants a version base. 1.4 warns of one, and its `main` wants a list of allowed modules.
    """
    if "execution_whitelist" not in inspect.signature(hydra.main).parameters:
        return {"version_base": "1.3"}
    allowed = ("specframe.*", "logging.*", "rich.logging.*")
    return {"execution_whitelist": allowed} if function is hydra.main else {}


@contextmanager
def configuration(config_dirs: Sequence[str] = ()) -> Iterator[ConfigLoader]:
    """Set Hydra up on conf/, the plugins and further folders; yields its loader.

    A Hydra session that exists already, of a running job or of another program, is restored
    afterwards.
    """
    bootstrap()
    session = GlobalHydra.instance()
    before = session.hydra
    session.clear()
    SpecframeSearchPath.first = tuple(str(Path(folder).resolve()) for folder in config_dirs)
    version = hydra_version_args(hydra.initialize_config_dir)
    try:
        with hydra.initialize_config_dir(str(conf_dir()), job_name="specframe", **version):
            yield GlobalHydra.instance().config_loader()
    finally:
        SpecframeSearchPath.first = ()
        GlobalHydra.instance().hydra = before


def default_choices(loader: ConfigLoader) -> dict[str, str | None]:
    """The option of each group in conf/config.yaml; None for a group that needs none."""
    chosen: dict[str, str | None] = {}
    for entry in _content(loader, "", CONFIG_NAME).get("defaults", []):
        # Entries that are no group are `_self_` and, with a space, `override hydra/help`.
        if isinstance(entry, dict):
            chosen |= {key: value for key, value in entry.items() if " " not in key}
    return chosen


def groups(loader: ConfigLoader) -> list[str]:
    """The axes and other groups at the top of conf/, plugins included."""
    return [name for name in _listed(loader, "", ObjectType.GROUP) if name != "hydra"]


def options(loader: ConfigLoader, group: str) -> list[str]:
    """The options of a group, plugins included."""
    return _listed(loader, group, ObjectType.CONFIG)


def _listed(loader: ConfigLoader, group: str, kind: ObjectType) -> list[str]:
    """What lies in a group on the search path; the loader's own answer copies it all each time."""
    places = [source for source in loader.get_sources() if source.is_group(config_path=group)]
    return sorted({name for place in places for name in place.list(group, kind)})


def option_files(loader: ConfigLoader, group: str, option: str) -> list[Path]:
    """The YAML files that define an option, in order of precedence: Hydra takes the first."""
    folders = [source.path for source in loader.get_sources() if source.scheme() == "file"]
    files = [Path(folder) / group / f"{option}.yaml" for folder in folders]
    return [file for file in files if file.is_file()]


def schema(loader: ConfigLoader, group: str, option: str) -> dict[str, Any]:
    """The keys and values of an option's YAML file, with those of the options it builds on."""
    content = _content(loader, group, option)
    merged: dict[str, Any] = {}
    for entry in content.pop("defaults", None) or []:
        if isinstance(entry, str) and entry not in ("_self_", option):
            merged |= schema(loader, group, entry)
    return merged | content


def check_named(loader: ConfigLoader, axis: str, option: str) -> None:
    """Raises ConfigError for an option whose YAML file does not name its component."""
    files = option_files(loader, axis, option)
    name = schema(loader, axis, option).get("name", "")
    if files and (not isinstance(name, str) or not name.strip() or "${" in name):
        wrong = f"has name: {name}" if name else "has no `name:`"
        raise ConfigError(
            f"{axis}={option}: {files[0]} {wrong}; write the word of its component, such as "
            f"name: {option}"
        )


def _content(loader: ConfigLoader, group: str, option: str) -> dict[str, Any]:
    """The content of one YAML file; {} if there is none or it holds no mapping."""
    files = option_files(loader, group, option)
    if not files:
        return {}
    state = files[0].stat()
    return deepcopy(_parsed(files[0], (state.st_mtime_ns, state.st_size, state.st_ino)))


@lru_cache(maxsize=1024)
def _parsed(file: Path, state: tuple[int, ...]) -> dict[str, Any]:
    """The mapping in a YAML file, read anew when the state of the file is another one.

    Raises ConfigError for a file that is no text.
    """
    try:
        content = OmegaConf.to_container(OmegaConf.load(file))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    return {str(key): item for key, item in content.items()} if isinstance(content, dict) else {}
