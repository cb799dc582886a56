"""Where log lines go: above a live progress bar on a terminal, never into piped output."""

from __future__ import annotations

import sys

import rich
from rich.console import Console
from rich.logging import RichHandler


class ConsoleHandler(RichHandler):
    """Rich's handler on the shared console if that is a terminal, else on standard error."""

    def __init__(self) -> None:
        console = rich.get_console() if sys.stdout.isatty() else Console(stderr=True)
        super().__init__(console=console, show_path=False, show_time=False)
