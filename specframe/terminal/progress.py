"""How far a long task is: a bar on a terminal; elsewhere a plain line now and then, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

_LINE_EVERY_S = 30.0  # seconds between two plain lines where there is no terminal


class _Bar:
    """A named bar with its count on standard error, shown while its `with` block runs.

    Rich draws nothing where standard error is no terminal; `bar.disable` tells so.
    """

    def __init__(self, name: str, *, total: int, done: int, last_column: ProgressColumn) -> None:
        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), last_column)
        self.bar = Progress(name, *columns, console=console, disable=not console.is_terminal)
        self.row = self.bar.add_task(name, total=total, completed=done, note="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()


class StepProgress(_Bar):
    """Counts the steps of a measurement, with the time left. Silent where there is no terminal."""

    def __init__(self, name: str, *, total: int) -> None:
        super().__init__(name, total=total, done=0, last_column=TimeRemainingColumn())

    def add(self, count: int) -> None:
        """Report that `count` more steps are done."""
        self.bar.advance(self.row, count)


class PromptProgress(_Bar):
    """Counts prompts and tokens, with tokens/s and the time left.

    `total` and `done` are numbers of prompts. Prompts that an earlier run finished (`done` at the
    start) are shown, but do not enter the speed.
    """

    def __init__(self, name: str, *, total: int, done: int) -> None:
        super().__init__(
            name, total=total, done=done, last_column=TextColumn("{task.fields[note]}")
        )
        self.name = name
        self.total = total
        self.done = self._done_before = done
        self.num_tokens = 0
        self._start_s = self._shown_s = time.monotonic()

    def add_tokens(self, count: int) -> None:
        """Report new tokens, whether or not their prompts are finished."""
        self.num_tokens += count
        self._show()

    def add_prompts(self, count: int) -> None:
        """Report prompts that are finished, or that cannot be answered."""
        self.done += count
        self._show()

    def note(self) -> str:
        """Tokens and tokens/s since the start, and about how long the rest will take."""
        seconds = time.monotonic() - self._start_s
        parts = [
            f"{self.num_tokens} tokens",
            f"{self.num_tokens / max(seconds, 1e-9):.1f} tokens/s",
        ]
        new = self.done - self._done_before
        if new and self.done < self.total:
            parts.append(f"about {duration(seconds / new * (self.total - self.done))} left")
        return ", ".join(parts)

    def _show(self) -> None:
        if not self.bar.disable:
            self.bar.update(self.row, completed=self.done, note=self.note())
        elif time.monotonic() - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = time.monotonic()
            sys.stderr.write(f"{self.name}: {self.done}/{self.total} prompts, {self.note()}\n")
            sys.stderr.flush()


def duration(seconds: float) -> str:
    """A duration as a person says it: `12 s`, `3 min`, `2.5 h`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
