"""Models that stay loaded from one point of a sweep to the next."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from specframe.compose.axes import Bound, Sources, user_errors
from specframe.drafter.base import Drafter
from specframe.records import InnerLoop, TrueText, is_warm
from specframe.runtime.base import Runtime
from specframe.target.base import Target

_KEPT = 3  # models of each sort
_OF_ONE_RUN = (InnerLoop, TrueText, Sources)  # what ties a drafter to one configuration


class Heads:
    """Drafters by what they were made of, a few at most. Every answer makes them begin afresh;
    one that keeps what it learnt is not handed out again."""

    def __init__(self) -> None:
        self._held: dict[str, Drafter] = {}

    def find(self, key: str) -> Drafter | None:
        """The drafter that was kept under this key, if it learnt nothing."""
        held = self._held.get(key)
        return held if held is not None and is_warm(held) is None else None

    def keep(self, key: str, bound: Bound, made: Drafter) -> None:
        """Keep it, if it has weights and is tied to nothing of this run."""
        tied = any(hint == one for hint in bound.hints.values() for one in _OF_ONE_RUN)
        if not bound.waits_for_weights or tied:
            return
        self._held.pop(key, None)
        while len(self._held) >= _KEPT:
            self._held.pop(next(iter(self._held)))
        self._held[key] = made

    def clear(self) -> None:
        """Let them go, and the targets they hold."""
        self._held.clear()


class Targets:
    """Targets by their values and what a runtime makes of their weights, a few at most.

    heads: drafters that hold their targets, and go with them.
    """

    def __init__(self, heads: Heads) -> None:
        self.held: dict[str, tuple[Target, Runtime]] = {}
        self._heads = heads

    def get(
        self, bound: Bound, how: Bound, device: torch.device, runtime: Runtime, *, drafts: bool
    ) -> tuple[Target, Runtime]:
        """The target and the runtime that it was loaded on: `runtime`, which is of `how`, unless
        the target was here already. Raises ConfigError.

        drafts: it is a draft model, and not the target itself.
        """
        made = [[one.cls.__module__, one.values] for one in (bound, how)]
        key = json.dumps([str(device), made, drafts], sort_keys=True)
        runtime = runtime.for_drafts() if drafts else runtime
        if key not in self.held:
            while len(self.held) >= _KEPT:
                self.held.pop(next(iter(self.held)))
                self._heads.clear()
            with user_errors("drafter.model" if drafts else "target"):
                target = bound.cls(**bound.values, device=device, runtime=runtime)
                self.held[key] = target, runtime
        self.held[key] = self.held.pop(key)
        return self.held[key]


def head_key(bound: Bound, others: Sequence[Bound], device: torch.device) -> str:
    """Everything that a drafter is made of. others: the target, cache and runtime it is given."""
    made = [[one.cls.__module__, one.given, one.values] for one in (bound, *others)]
    return json.dumps([str(device), made], sort_keys=True, default=str)
