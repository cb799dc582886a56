"""A point of a sweep: what tells it from the others, and the record of how it ended."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

OK, SKIPPED, FAILED = "ok", "skipped", "failed"
RECORD = "status.json"
RESULTS = (
    "metrics.json",
    "summary.json",
    "replay.json",
)  # what tasks leave beside it, with their numbers
TRACKER_ERRORS = "tracker_error.txt"  # in a run's folder, where a tracker failed
OBJECTIVE = "objective"  # the key of what an optimising sweeper maximises
_NOT_OF_A_POINT = ("hydra", OBJECTIVE)
_PER_RUN = re.compile(r"\$\{(now|hydra):")  # interpolations that differ from run to run
_DIGITS = 12  # of a configuration's hash


@dataclass(frozen=True, kw_only=True)
class PointPlace:
    """A point before it runs. command: the sweep that asks, number: its place there; choices:
    option by group; config: resolved, plain values."""

    directory: Path
    number: int
    command: str
    config_hash: str
    overrides: list[str]
    choices: dict[str, str]
    config: dict[str, Any]

    @classmethod
    def of(cls, config: DictConfig, *, command: str) -> PointPlace:
        """That of the Hydra job which is running."""
        settings = HydraConfig.get()
        chosen = {str(group): option for group, option in settings.runtime.choices.items()}
        return cls(
            directory=Path(settings.runtime.output_dir),
            number=int(settings.job.num),
            command=command,
            config_hash=config_hash(config),
            overrides=list(settings.overrides.task),
            choices={k: v for k, v in chosen.items() if v is not None and "/" not in k},
            config=plain(config),
        )

    def ended(self, status: str, reason: str = "", *, seconds: float) -> Point:
        """The record of its end."""
        found = [name for name in RESULTS if (self.directory / name).is_file()]
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return Point(
            **given | {"directory": str(self.directory)},
            status=status,
            reason=reason,
            seconds=seconds,
            results=found,
        )


@dataclass(frozen=True, kw_only=True)
class Point:
    """How a point ended. seconds: it took. results: names of the files with its numbers.
    reused: an earlier command had finished it."""

    number: int
    status: str
    reason: str
    overrides: list[str]
    choices: dict[str, str]
    config_hash: str
    seconds: float
    results: list[str]
    directory: str
    command: str
    config: dict[str, Any]
    reused: bool = False

    def write(self) -> None:
        """Into its folder, whole or not at all."""
        target = Path(self.directory) / RECORD
        partial = target.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(asdict(self), indent=1, default=str) + "\n", encoding="utf-8")
        os.replace(partial, target)

    @classmethod
    def read(cls, directory: Path) -> Point | None:
        """The record in a folder, None where there is no whole one. A folder may have moved."""
        try:
            held = json.loads((directory / RECORD).read_text(encoding="utf-8"))
            return cls(**held | {"directory": str(directory)})
        except (OSError, ValueError, TypeError):
            return None

    def stands_for(self, place: PointPlace) -> bool:
        """Whether this configuration is finished, with its numbers still there."""
        there = all((Path(self.directory) / name).is_file() for name in self.results)
        return self.status == OK and self.config_hash == place.config_hash and there


def points_of(sweep: Path, command: str) -> list[Point]:
    """The points that a command asked for, in the order in which it did."""
    found = (Point.read(file.parent) for file in sweep.rglob(RECORD))
    mine = [point for point in found if point is not None and point.command == command]
    return sorted(mine, key=lambda point: point.number)


def plain(config: DictConfig) -> dict[str, Any]:
    """The configuration without Hydra's part; interpolations that name a run stay as they are."""
    kept = OmegaConf.masked_copy(config, [str(key) for key in config if key not in _NOT_OF_A_POINT])
    raw: Any = OmegaConf.to_container(kept, resolve=False)
    if not _PER_RUN.search(json.dumps(raw, default=str)):
        try:
            raw = OmegaConf.to_container(kept, resolve=True)
        except OmegaConfBaseException:
            return raw  # the run itself will say what is wrong
    return raw


def config_hash(config: DictConfig) -> str:
    """Twelve digits that stand for everything a point depends on, the words' order left out."""
    text = json.dumps(plain(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def flat(value: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested mappings; other values stay whole."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flat(item, f"{above}{key}.")
        else:
            yield f"{above}{key}", item


# Folders are named in the worker processes of launchers too, which import this and run no `main`.
OmegaConf.register_new_resolver(
    "specframe_hash", lambda *, _root_: config_hash(_root_), replace=True
)
