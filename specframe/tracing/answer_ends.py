"""Where the whole answers of a trace.jsonl end."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path


def answer_ends(path: Path) -> dict[int, int]:
    """Number of each whole answer of a file -> bytes of the file up to its end; {} without it."""
    ends: dict[int, int] = {}
    size = 0
    if path.is_file():
        with path.open("rb") as file, suppress(ValueError):  # nothing counts behind a torn line
            for text in file:
                line = json.loads(text)
                size += len(text)
                if line["kind"] == "end":
                    ends[line["answer"]] = size
    return ends
