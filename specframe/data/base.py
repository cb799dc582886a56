"""The contract of a suite of prompts: a file, fetched if it is not on this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from specframe.registry import Registry


class Suite(ABC):
    """Prompts that a word names, as in `data=spec_bench`, where `prompts=FILE` names a file."""

    @abstractmethod
    def file(self) -> Path:
        """The file (or the word `builtin`) for `read_prompts`; it may be fetched first.

        Raises ConfigError for a wrong path, MissingResource where fetching fails.
        """


SUITES: Registry[Suite] = Registry("data", "specframe.data")
