"""What a table of costs is true for, and where tables are kept."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from specframe.errors import ConfigError
from specframe.planning.cost_table import CostTable
from specframe.session.engine import Engine
from specframe.session.manifest import hardware, identity, write_json
from specframe.storage.cache_folder import cache_root

_MACHINE = ("cpu", "cores_allowed", "torch_threads", "cuda")
_AXES = ("drafter", "cache", "runtime", "sampling")


def fingerprint(engine: Engine, config: dict[str, Any]) -> dict[str, Any]:
    """Everything that a table depends on, plain values: machine, threads, torch, dtype, runtime,
    cache, target, drafter, sampling and how nodes are made."""
    target = engine.parts.target
    known = identity(target, target.name)
    machine = hardware(target.device)
    found: dict[str, Any] = {name: machine[name] for name in _MACHINE}
    found |= {"torch": torch.__version__, "proposal": engine.parts.how}
    names = ("class", "dtype", "device", "num_layers", "vocab_size", "weights")
    found["target"] = {name: known[name] for name in names} | {"name": target.name}
    found |= {axis: config[axis] for axis in _AXES}
    # As it is read back, so that the two compare.
    return dict(json.loads(json.dumps(found, sort_keys=True, default=str)))


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """`name: there, here` of what differs between two fingerprints."""
    names = sorted({*here, *there})
    return [
        f"{name}: {_short(there.get(name))} there, {_short(here.get(name))} here"
        for name in names
        if here.get(name) != there.get(name)
    ]


def costs_file(dependencies: dict[str, Any]) -> Path:
    """The file of this fingerprint in the user's cache; another fingerprint has another."""
    digest = hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()
    return cache_root() / "costs" / f"{digest[:24]}.json"


def stored_costs(dependencies: dict[str, Any]) -> CostTable | None:
    """The table that was measured for exactly this, if there is one."""
    path = costs_file(dependencies)
    if not path.is_file():
        return None
    try:
        stored, table = read_costs(path)
    except ConfigError as error:
        sys.stderr.write(f"specframe: {error}; measured again\n")
        return None
    return table if stored == dependencies else None


def store_costs(dependencies: dict[str, Any], costs: CostTable) -> Path | None:
    """Keep a table for later runs; None, and a line that says so, where that cannot be."""
    path = costs_file(dependencies)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"fingerprint": dependencies, "costs": costs.as_dict()})
    except OSError as error:
        sys.stderr.write(
            f"specframe: the costs are not kept, cannot write {path.parent} ({error.strerror}); "
            "set SPECFRAME_CACHE to a folder that you can write\n"
        )
        return None
    return path


def read_costs(path: Path) -> tuple[dict[str, Any], CostTable]:
    """(fingerprint, table) of a file. Raises ConfigError naming it."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return stored["fingerprint"], CostTable.of(stored["costs"])
    except FileNotFoundError:
        raise ConfigError(
            f"tree.costs={path}: no such file; make one with task=profile, or give null"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"tree.costs={path}: no profile.json of task=profile ({error}); make one, or give null"
        ) from None


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) < 60 else f"{text[:56]} ..."
