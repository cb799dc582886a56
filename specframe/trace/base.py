"""The contract of a trace: it watches the answers of a run and leaves files in the run's folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from specframe.records import Observer
from specframe.registry import Registry
from specframe.session.engine import Engine, Generation


@dataclass(frozen=True, kw_only=True)
class TracedPrompt:
    """An answer that is about to be made. number: from 0 in the order of the run; prompt: the
    user's text; sequence: what keys its noise."""

    number: int
    id: str | int | None
    category: str | None
    prompt: str
    prompt_tokens: Sequence[int]
    sequence: int = 0


class Tracer:
    """The open files of a run's trace. This one keeps nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def begin(self, prompt: TracedPrompt) -> Sequence[Observer]:
        """Who shall see the steps of this answer. The one before it has ended or was given up."""
        return ()

    def end(self, generation: Generation, metrics: dict[str, Any]) -> None:
        """The answer is complete."""

    def close(self) -> None:
        """The run has ended, however it did."""


class Trace(ABC):
    """Keeps what the steps of a run were.

    off: nothing is watched, so that every task takes it. extra_syncs: host reads a step, made after
    the step's own; what it makes on the device, it makes after the verdict is read.
    """

    off: ClassVar[bool] = False
    extra_syncs: ClassVar[int] = 0

    def traced_engine(self, engine: Engine) -> Engine:
        """The engine whose answers are kept: the run's own, unless a trace needs another loop.

        Raises IncompatibleComponents for a composition that cannot be traced so."""
        return engine

    @abstractmethod
    def open(self, engine: Engine, folder: Path, config: dict[str, Any]) -> Tracer:
        """Start the files of a run of this (watched) engine, composed from `config`."""


TRACES: Registry[Trace] = Registry("trace", "specframe.trace")
