"""How far a long task is: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

_LINE_EVERY_S = 30.0


def bar(word: str, last: ProgressColumn) -> Progress:
    """A bar with its count on standard error, shown where that is a terminal."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), last)
    return Progress(word, *columns, console=console, disable=not console.is_terminal)


class Pace:
    """Counts prompts and tokens; shows tokens/s and the time left on standard error.

    total and done are prompts; those done before the start say nothing about the pace.
    """

    def __init__(self, word: str, *, total: int, done: int) -> None:
        self.word = word
        self.total = total
        self.done = self._done_before = done
        self.num_tokens = 0
        self._start = self._shown = time.monotonic()
        self._bar = bar(word, TextColumn("{task.fields[note]}"))
        self._task = self._bar.add_task(word, total=total, completed=done, note="")

    def __enter__(self) -> Pace:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def add_tokens(self, count: int) -> None:
        """Tokens made, of prompts that may not be finished."""
        self.num_tokens += count
        self._show()

    def add_prompts(self, count: int) -> None:
        """Prompts dealt with."""
        self.done += count
        self._show()

    def note(self) -> str:
        """Tokens/s since the start, and about how long the rest will take."""
        seconds = time.monotonic() - self._start
        parts = [
            f"{self.num_tokens} tokens",
            f"{self.num_tokens / max(seconds, 1e-9):.1f} tokens/s",
        ]
        new = self.done - self._done_before
        if new and self.done < self.total:
            parts.append(f"about {_duration(seconds / new * (self.total - self.done))} left")
        return ", ".join(parts)

    def _show(self) -> None:
        if not self._bar.disable:
            self._bar.update(self._task, completed=self.done, note=self.note())
        elif time.monotonic() - self._shown >= _LINE_EVERY_S:
            self._shown = time.monotonic()
            sys.stderr.write(f"{self.word}: {self.done}/{self.total} prompts, {self.note()}\n")
            sys.stderr.flush()


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
