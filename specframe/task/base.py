"""The contract of a task: it is handed a composed engine and leaves files in the run's folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from specframe.prompts.reader import BUILTIN, PromptRecord, read_prompts
from specframe.registry import Registry
from specframe.session.engine import Engine
from specframe.trace.base import TRACES, Trace


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a task works on: one composed command."""

    # Composed from the configuration; a task without `uses_engine` must not touch it.
    engine: Engine
    # The resolved configuration, in plain Python types.
    config: dict[str, Any]
    # The run's folder, where a task leaves its files.
    output_dir: Path
    # The user's prompt, or the user's file of prompts. At most one of the two is given.
    prompt: str | None
    prompts: Path | None
    # Composes the same command again with more overrides behind it, such as "target=toy" or
    # "seed=1". Weights that these do not change stay loaded.
    rebuild: Callable[[Sequence[str]], Engine]
    # The overrides of the command line, in order.
    overrides: Sequence[str] = ()
    # Answers that are decoded at once, in tasks that have `can_batch`.
    batch_size: int = 1
    # Records the steps of the answers, in tasks that have `can_trace`.
    trace: Trace = field(default_factory=lambda: TRACES.get("none")())

    def records(self) -> list[PromptRecord]:
        """The user's prompt or prompts, or else the built-in set. Raises ConfigError."""
        if self.prompt is not None:
            return [PromptRecord(turns=(self.prompt,))]
        return read_prompts(BUILTIN if self.prompts is None else self.prompts)


class Task(ABC):
    """What `task=` names: it does something with an engine and leaves files in the run's folder."""

    # Whether `drafter=` matters to it; otherwise drafter=none is composed.
    uses_drafter: ClassVar[bool] = True
    # Whether it needs an engine; a task that only reads files is run without loading a model.
    uses_engine: ClassVar[bool] = True
    # Whether it records the steps of its answers; `trace=` is refused otherwise.
    can_trace: ClassVar[bool] = False
    # Whether it decodes several answers at once; `batch_size=` is refused otherwise.
    can_batch: ClassVar[bool] = False
    # Whether its files are the same at any `batch_size`, so that a run may go on with another.
    same_in_any_batch: ClassVar[bool] = False
    # Whether it works on the model's layers as they were loaded, to train them or to run
    # transformers' own code; runtime=eager is then composed, which leaves them as they are.
    unpacked_weights: ClassVar[bool] = False
    # First words of the numbers that it leaves beside those of answers (`measure.metrics`);
    # `objective=` may name them.
    numbers: ClassVar[tuple[str, ...]] = ()
    # Whether it measures the costs of a step itself; a tree that plans by costs then gets none.
    measures_costs: ClassVar[bool] = False

    # Options of its own that change no result: the same run may go on with others.
    free: ClassVar[tuple[str, ...]] = ()
    # Options that name files which it writes itself: their content is no input of the run.
    outputs: ClassVar[tuple[str, ...]] = ()

    # Whether the same configuration would do the same again, so that a finished run is complete.
    repeatable: ClassVar[bool] = True

    def check(self, config: dict[str, Any]) -> None:
        """Refuse what this task cannot do with the resolved configuration. No model is loaded yet.

        Raises ConfigError, IncompatibleComponents or MissingResource.
        """

    @abstractmethod
    def run(self, job: Job) -> int:
        """Do the work and return the exit code: 0, or 1 if the task's own verdict is negative."""


TASKS: Registry[Task] = Registry("task", "specframe.task")
