"""How far a measurement is: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn


class Steps:
    """Counts steps of a known total on standard error, with the time left."""

    def __init__(self, word: str, *, total: int) -> None:
        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(word, *columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(word, total=total)

    def __enter__(self) -> Steps:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def add(self, count: int) -> None:
        """So many more are done."""
        self._bar.advance(self._task, count)
