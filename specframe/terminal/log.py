"""Log lines: above a live progress bar on a terminal, and never into piped output."""

from __future__ import annotations

import sys

import rich
from rich.console import Console
from rich.logging import RichHandler


class ConsoleHandler(RichHandler):
    """Writes to the shared console if that is a terminal, and otherwise to standard error."""

    def __init__(self) -> None:
        console = rich.get_console() if sys.stdout.isatty() else Console(stderr=True)
        super().__init__(console=console, show_path=False, show_time=False)
