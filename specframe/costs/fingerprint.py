"""What a table of costs depends on: a table is only true where all of this is the same."""

from __future__ import annotations

import json
from typing import Any

import torch

from specframe.session.engine import Engine
from specframe.session.manifest import hardware, identity

_MACHINE = ("cpu", "cores_allowed", "torch_threads", "cuda")
_TARGET = ("class", "dtype", "device", "num_layers", "vocab_size", "weights")
_AXES = ("drafter", "cache", "runtime", "sampling")


def fingerprint(engine: Engine, config: dict[str, Any]) -> dict[str, Any]:
    """Everything that an engine's costs depend on, as plain values.

    Machine, threads, torch, dtype, runtime, cache, target, drafter, sampling, and how nodes are
    made.
    """
    target = engine.components.target
    known, machine = identity(target, target.name), hardware(target.device)
    values: dict[str, Any] = {name: machine[name] for name in _MACHINE}
    values |= {"torch": torch.__version__, "proposal": engine.components.how}
    values["target"] = {name: known[name] for name in _TARGET} | {"name": target.name}
    values |= {axis: config[axis] for axis in _AXES}
    # In the form in which it is read back from a file, so that the two compare.
    return dict(json.loads(json.dumps(values, sort_keys=True, default=str)))


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """`name: there, here` of everything that differs between two fingerprints."""
    names = sorted({*here, *there})
    return [
        f"{name}: {_short(there.get(name))} there, {_short(here.get(name))} here"
        for name in names
        if here.get(name) != there.get(name)
    ]


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) < 60 else f"{text[:56]} ..."
