"""A point of a sweep: what is planned, a hash of it, and the record of how it ended."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specframe.storage.whole_files import write_whole

OK, SKIPPED, FAILED = "ok", "skipped", "failed"
RECORD = "status.json"
RESULTS = ("metrics.json", "replay.json")  # files with the numbers of a task
TRACKER_ERRORS = "tracker_error.txt"  # in the folder of a run whose tracker failed
OBJECTIVE = "objective"  # the key that names the number which an optimising sweeper maximises
_NOT_COMPARED = ("hydra", OBJECTIVE)
_PER_RUN = re.compile(r"\$\{(now|hydra):")  # interpolations that differ from run to run
_DIGITS = 12  # of a configuration's hash


@dataclass(frozen=True, kw_only=True)
class PlannedPoint:
    """A point before it runs."""

    directory: Path
    number: int  # its place among the points of the command
    command: str  # the command that asks for it, see `multirun.Sweep`
    config_hash: str
    overrides: list[str]  # the words of the command, with this point's values
    choices: dict[str, str]  # the option of each group
    config: dict[str, Any]  # plain values

    @classmethod
    def of(cls, config: DictConfig, *, command: str) -> PlannedPoint:
        """The point of the Hydra job which is running."""
        settings = HydraConfig.get()
        chosen = {str(group): option for group, option in settings.runtime.choices.items()}
        return cls(
            directory=Path(settings.runtime.output_dir),
            number=int(settings.job.num),
            command=command,
            config_hash=config_hash(config),
            overrides=list(settings.overrides.task),
            choices={k: v for k, v in chosen.items() if v is not None and "/" not in k},
            config=plain_config(config),
        )

    def ended(self, status: str, reason: str = "", *, seconds: float) -> PointRecord:
        """The record of how it ended, with the result files that are in its folder."""
        results = [name for name in RESULTS if (self.directory / name).is_file()]
        planned = {field.name: getattr(self, field.name) for field in fields(self)}
        return PointRecord(
            **planned | {"directory": str(self.directory)},
            status=status,
            reason=reason,
            seconds=seconds,
            results=results,
        )


@dataclass(frozen=True, kw_only=True)
class PointRecord:
    """How a point ended; the fields of `PlannedPoint` mean the same here."""

    number: int
    status: str  # ok, skipped (the words do not go together) or failed
    reason: str  # why it was skipped or failed, else ""
    overrides: list[str]
    choices: dict[str, str]
    config_hash: str
    seconds: float  # how long it took
    results: list[str]  # names of the files in its folder that hold its numbers
    directory: str
    command: str
    config: dict[str, Any]
    reused: bool = False  # whether an earlier command had finished it

    def write(self) -> None:
        """Write it into its folder; a reader sees the whole record or the one before."""
        target = Path(self.directory) / RECORD
        write_whole(target, f"{json.dumps(asdict(self), indent=1, default=str)}\n".encode())

    @classmethod
    def read(cls, directory: Path) -> PointRecord | None:
        """The record in a folder, which may have been moved; None if there is no whole one."""
        try:
            content = json.loads((directory / RECORD).read_text(encoding="utf-8"))
            return cls(**content | {"directory": str(directory)})
        except (OSError, ValueError, TypeError):
            return None


def points_of(sweep: Path, command: str) -> list[PointRecord]:
    """The points that a command asked for, in its order."""
    records = (PointRecord.read(file.parent) for file in sweep.rglob(RECORD))
    mine = [point for point in records if point is not None and point.command == command]
    return sorted(mine, key=lambda point: point.number)


def plain_config(config: DictConfig) -> dict[str, Any]:
    """The values of a configuration, resolved, without Hydra's part.

    Where an interpolation differs from run to run (a date), nothing is resolved.
    """
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key not in _NOT_COMPARED])
    raw: Any = OmegaConf.to_container(own, resolve=False)
    if not _PER_RUN.search(json.dumps(raw, default=str)):
        try:
            raw = OmegaConf.to_container(own, resolve=True)
        except OmegaConfBaseException:
            return raw  # the run itself will say what is wrong
    return raw


def config_hash(config: DictConfig) -> str:
    """Twelve digits that stand for all that a point depends on, whatever the order of its words."""
    text = json.dumps(plain_config(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def flat(value: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested mappings; other values stay whole."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flat(item, f"{above}{key}.")
        else:
            yield f"{above}{key}", item


# A point's folder is named by this hash, in the worker processes of launchers too: they import this
# module and do not run `main`.
OmegaConf.register_new_resolver(
    "specframe_hash", lambda *, _root_: config_hash(_root_), replace=True
)
