"""A prompt file that the user names."""

from __future__ import annotations

from pathlib import Path

from specframe.data.base import SUITES, Suite
from specframe.errors import ConfigError


@SUITES.register("file")
class File(Suite):
    """The prompts of `path`: .jsonl with `prompt` or `turns`, or text with one a line."""

    def __init__(self, *, path: str) -> None:
        self.path = Path(path)

    def file(self) -> Path:
        if not self.path.is_file():
            raise ConfigError(f"data.path={self.path}: no such file")
        return self.path
