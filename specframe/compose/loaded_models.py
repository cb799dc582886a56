"""Models that stay loaded between the points of a sweep and between calls of `specframe.load`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import torch

from specframe.compose.axes import BoundOption, Sources
from specframe.drafter.base import Drafter
from specframe.errors import user_errors
from specframe.records import InnerLoop, TrueText, is_warm
from specframe.runtime.base import Runtime
from specframe.target.base import Target

_MAX_MODELS = 3  # of each sort
_OF_ONE_RUN = (InnerLoop, TrueText, Sources)  # parameters that tie a drafter to one configuration


class LoadedModels:
    """The targets and drafters that are loaded, the few that were used last.

    A target is shared by every engine that is composed of the same values. A drafter has state, so
    it is shared only by runs that follow each other, and not if it keeps what it learnt.
    """

    def __init__(self) -> None:
        self._targets: dict[str, tuple[Target, Runtime]] = {}
        self._drafters: dict[str, Drafter] = {}

    @classmethod
    @cache
    def shared(cls) -> LoadedModels:
        """Those of this process: the command line and `specframe.load` use them."""
        return cls()

    @property
    def num_targets(self) -> int:
        """How many targets are loaded, draft models included."""
        return len(self._targets)

    def target(
        self,
        option: BoundOption,
        runtime_option: BoundOption,
        device: torch.device,
        runtime: Runtime,
        *,
        is_draft_model: bool,
    ) -> tuple[Target, Runtime]:
        """The target of these values, loaded with `runtime` if it is not here yet, and its runtime.

        A target that is here keeps the runtime that it was loaded with. runtime_option: what
        `runtime` was made of. is_draft_model: its text is not what is wanted. Raises ConfigError.
        """
        runtime = runtime.for_drafts() if is_draft_model else runtime
        values = [[each.cls.__module__, each.values] for each in (option, runtime_option)]
        key = json.dumps([str(device), values, is_draft_model], sort_keys=True)
        if key not in self._targets:
            while len(self._targets) >= _MAX_MODELS:
                self._targets.pop(next(iter(self._targets)))
                self._drafters.clear()  # they hold their targets
            with user_errors("drafter.model" if is_draft_model else "target"):
                target = option.make(device=device, runtime=runtime)
            self._targets[key] = target, runtime
        self._targets[key] = self._targets.pop(key)  # the last one used is the last one dropped
        return self._targets[key]

    def drafter(self, key: str) -> Drafter | None:
        """The drafter that was kept under this key, unless it has learnt from what it saw."""
        drafter = self._drafters.get(key)
        return drafter if drafter is not None and is_warm(drafter) is None else None

    def keep_drafter(self, key: str, option: BoundOption, drafter: Drafter) -> None:
        """Keep a drafter that has weights and is not tied to the configuration of one run."""
        tied = any(hint == kind for hint in option.hints.values() for kind in _OF_ONE_RUN)
        if not option.waits_for_weights or tied:
            return
        self._drafters.pop(key, None)
        while len(self._drafters) >= _MAX_MODELS:
            self._drafters.pop(next(iter(self._drafters)))
        self._drafters[key] = drafter

    def clear(self) -> None:
        """Drop all of them."""
        self._targets.clear()
        self._drafters.clear()


def drafter_key(option: BoundOption, others: Sequence[BoundOption], device: torch.device) -> str:
    """Everything that a drafter is made of. others: the target, cache and runtime that it gets."""
    values = [[each.cls.__module__, each.given, each.values] for each in (option, *others)]
    return json.dumps([str(device), values], sort_keys=True, default=str)
