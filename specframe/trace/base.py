"""The contract of a trace: it watches the answers of a run and leaves files in the run's folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from specframe.records import Observer
from specframe.registry import Registry
from specframe.session.engine import Engine
from specframe.session.generation import Generation


@dataclass(frozen=True, kw_only=True)
class TracedPrompt:
    """The prompt of an answer that is about to be decoded."""

    number: int  # from 0, in the order of the run
    id: str | int | None  # as the prompt file gives it
    category: str | None  # as the prompt file gives it
    prompt: str  # the text of the user
    prompt_tokens: Sequence[int]  # what the target is given
    sequence: int = 0  # number that the noise of this answer is keyed by


class Tracer:
    """The open files of a run's trace. This one, the base, writes nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def has(self, number: int) -> bool:
        """Whether all of this answer is in the files of an earlier command."""
        return True

    def keep(self, num_answers: int) -> None:
        """The run goes on behind so many answers: what is there of later ones is dropped."""

    def begin(self, prompt: TracedPrompt) -> Sequence[Observer]:
        """An answer begins: returns the observers of its steps.

        The answer before it has ended, or was given up without a call of `end`.
        """
        return ()

    def end(self, generation: Generation, metrics: dict[str, Any]) -> None:
        """The answer is complete. metrics: its numbers, as `Metrics.as_dict` gives them."""

    def close(self) -> None:
        """The run has ended, by itself or by an exception."""


class Trace(ABC):
    """Writes down what the steps of a run were.

    What a trace computes on the device it computes after the verdict was read, so that the step
    does not wait for it.
    """

    off: ClassVar[bool] = False  # whether no step is observed, so that every task takes the trace
    host_reads: ClassVar[int] = 0  # host reads a step, made after the step's own

    def traced_engine(self, engine: Engine) -> Engine:
        """The engine whose answers are traced: the run's own, unless a trace needs other steps.

        Raises IncompatibleComponents for a composition that cannot be traced so.
        """
        return engine

    @abstractmethod
    def open(self, engine: Engine, folder: Path, config: dict[str, Any]) -> Tracer:
        """Open the files of a run in `folder`.

        engine: what `traced_engine` gave; config: what the run was composed from.
        """


TRACES: Registry[Trace] = Registry("trace", "specframe.trace")
