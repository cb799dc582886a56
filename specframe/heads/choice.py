"""Which head is meant, settled before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.heads.files import WEIGHTS, check_present
from specframe.heads.shipped import head_for, local_path

AUTO = "auto"  # the word for the vocabulary that a head brings
VOCABULARY = "vocabulary.json"  # its file


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    """path: where the head is. vocabulary: file of the ids that it may draft, None for all."""

    path: str
    vocabulary: str | None

    @classmethod
    def of(cls, drafter: str, path: str | None, vocabulary: str | None, target: str) -> HeadChoice:
        """What null (the head that ships for the target of this name) and auto (the file beside
        the head, where there is one) stand for. Raises ConfigError."""
        path = head_for(drafter, target) if path is None else path
        if vocabulary == AUTO:
            place = Path(local_path(path)).expanduser()
            file = (place if place.is_dir() else place.parent) / VOCABULARY
            vocabulary = str(file) if file.is_file() else None
        elif vocabulary is not None:
            vocabulary = local_path(vocabulary)
        return cls(path=path, vocabulary=vocabulary)


def settled(
    drafter: str, values: Mapping[str, Any], target: str, *, weights: Sequence[str] = WEIGHTS
) -> dict[str, Any]:
    """A drafter's values with its choice in them, once its files are known to be there.

    weights: names of files, as in `files.read`. Raises ConfigError.
    """
    chosen = HeadChoice.of(drafter, values["path"], values["vocabulary"], target)
    check_present(chosen.path, weights=weights)
    file = chosen.vocabulary
    if file is not None and not Path(file).expanduser().is_file():
        raise ConfigError(f"drafter.vocabulary={file}: no such file")
    return {**values, "path": chosen.path, "vocabulary": chosen.vocabulary}
