"""How far a measurement is: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.progress import TimeRemainingColumn

from specframe.terminal.pace import bar


class Steps:
    """Counts steps of a known total on standard error, with the time left."""

    def __init__(self, word: str, *, total: int) -> None:
        self._bar = bar(word, TimeRemainingColumn())
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
