"""The contract of a suite: it knows where its prompts are, and brings them here if need be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from specframe.registry import Registry


class Suite(ABC):
    """Prompts by a word, `data=spec_bench`, instead of a file, `prompts=FILE`."""

    @abstractmethod
    def file(self) -> Path:
        """A file (or the word `builtin`) that `read_prompts` takes.

        May fetch. Raises ConfigError for a wrong path, MissingResource where fetching fails.
        """


SUITES: Registry[Suite] = Registry("data", "specframe.data")
