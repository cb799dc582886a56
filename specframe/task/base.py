"""The contract of a task: it is handed a composed engine and leaves files in the run's folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from specframe.registry import Registry
from specframe.session.engine import Engine
from specframe.trace.base import TRACES, Trace


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a task works on.

    engine: composed from the configuration. config: that configuration, resolved, plain types.
    prompt and prompts (a file) are the user's; at most one is given. rebuild(overrides) composes
    the same command again with more overrides on top ("target=toy", "seed=1"); weights that do not
    change stay loaded. words: those of the command. trace: what is kept of the steps, for tasks
    that take one.
    """

    engine: Engine
    config: dict[str, Any]
    output_dir: Path
    prompt: str | None
    prompts: Path | None
    rebuild: Callable[[Sequence[str]], Engine]
    words: Sequence[str] = ()
    trace: Trace = field(default_factory=lambda: TRACES.get("none")())


class Task(ABC):
    """Does something with an engine.

    drafts: whether that takes a drafter; else none is loaded. loads: whether it takes an engine at
    all; one that reads files alone is handed none. traces: whether the steps of its answers can be
    kept (`trace=`). plain: whether it works on the model's own layers (to train them, or by
    transformers' code); then runtime=eager leaves them. measures_costs: it does that itself, so a
    tree that wants to know them gets none before.
    """

    drafts: ClassVar[bool] = True
    loads: ClassVar[bool] = True
    traces: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    measures_costs: ClassVar[bool] = False

    def check(self, config: dict[str, Any]) -> None:
        """Before anything is loaded: raises ConfigError, IncompatibleComponents or MissingResource
        for what this task cannot do with the resolved configuration."""

    @abstractmethod
    def run(self, job: Job) -> int:
        """Work; returns the exit code of the process (0: fine, 1: a verdict against)."""


TASKS: Registry[Task] = Registry("task", "specframe.task")
