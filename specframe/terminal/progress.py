"""How far a long task is: a bar on a terminal; elsewhere a plain line now and then, or nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
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
    """Counts the steps of a work, with what is being done and the time left.

    done: steps of an earlier run, which do not enter the time left.
    """

    def __init__(self, name: str, *, total: int, done: int = 0) -> None:
        columns = TextColumn("{task.fields[note]}")
        super().__init__(name, total=total, done=done, last_column=columns)
        self.name = name
        self.total = total
        self.done = self._done_before = done
        self._what = ""
        self._start_s = self._shown_s = time.monotonic()

    def add(self, count: int) -> None:
        """Report that `count` more steps are done."""
        self.done += count
        self._show()

    def begin(self, what: str) -> None:
        """Report what is being done from now on."""
        self._what = what
        self._show()

    def note(self) -> str:
        """What is being done, and about how long the rest will take."""
        new = self.done - self._done_before
        parts = [self._what]
        if new > 0 and self.done < self.total:
            pace = (time.monotonic() - self._start_s) / new
            parts.append(f"about {duration(pace * (self.total - self.done))} left")
        return ", ".join(part for part in parts if part)

    def _show(self) -> None:
        if not self.bar.disable:
            self.bar.update(self.row, completed=self.done, note=self.note())
        elif time.monotonic() - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = time.monotonic()
            note = self.note()
            sys.stderr.write(f"{self.name}: {self.done}/{self.total}{note and f', {note}'}\n")
            sys.stderr.flush()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something goes on for a while, with the seconds; elsewhere a line if it is long.

    Lines that are written to standard error meanwhile stand above.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn(what), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            bar.add_task(what, total=None)
            yield
        return
    timer = threading.Timer(_LINE_EVERY_S, sys.stderr.write, [f"specframe: still {what}\n"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
