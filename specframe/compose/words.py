"""The words of a configuration, bound: a task may overrule some, a device the runtime's."""

from __future__ import annotations

from typing import Any

import torch

from specframe.compose import catalogue
from specframe.compose.axes import AXES, OPTIONAL, Bound, bind_axis
from specframe.compose.compatibility import check_trace
from specframe.compose.nested import bind_drafter
from specframe.errors import ConfigError


def bind_words(plain: dict[str, Any], device: torch.device) -> dict[str, Bound]:
    """Every axis of a configuration, in which what is overruled is replaced."""
    chosen = [axis for axis in AXES if axis not in OPTIONAL or plain.get(axis) is not None]
    task = bind_axis("task", plain["task"])
    plain["runtime"] = runtime_on(plain["runtime"], device)
    if not task.cls.uses_drafter:
        plain["drafter"] = {"name": "none"}
    if task.cls.unpacked_weights:
        plain["runtime"] = {"name": "eager", "buckets": None}
    bound = {axis: bind_axis(axis, plain[axis]) for axis in chosen if axis != "drafter"}
    check_trace(task.cls, bound["trace"].cls, bound["trace"].word)
    bound["drafter"] = bind_drafter(plain["drafter"])
    return bound


def runtime_on(values: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The values of a runtime, or on a CUDA device those of the word that its key `cuda` names.

    The other's numbers are those of its YAML, but for keys of both that are not null here.
    """
    word = values.get("cuda")
    if word is None or device.type != "cuda":
        return values
    with catalogue.configuration() as loader:
        known = catalogue.options(loader, "runtime")
        if word not in known:
            raise ConfigError(
                f"runtime.cuda={word}: no such runtime; use {', '.join(known)} or null"
            )
        found = catalogue.schema(loader, "runtime", word)
    given = {key: value for key, value in values.items() if key != "name" and value is not None}
    return {key: given.get(key, value) for key, value in found.items()}
