"""The 48 short prompts that come with the package."""

from __future__ import annotations

from pathlib import Path

from specframe.data.base import SUITES, Suite
from specframe.prompts.reader import BUILTIN


@SUITES.register("builtin")
class Builtin(Suite):
    """Eight prompts each of conversation, translation, summarization, qa, math and rag.

    Written for this project, one turn each; needs no file and no network.
    """

    def file(self) -> Path:
        return Path(BUILTIN)
