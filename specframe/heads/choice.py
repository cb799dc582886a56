"""Which head a drafter uses, decided from its keys before anything is loaded.

drafter.path=null stands for the head that ships for the target, and drafter.vocabulary=auto for the
list of tokens that lies beside the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.heads.head_files import WEIGHTS, check_present
from specframe.heads.shipped import head_for, local_path

AUTO = "auto"  # stands for the vocabulary that lies beside a head
VOCABULARY = "vocabulary.json"  # the name of that file


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    """A head and the tokens that it may draft."""

    path: str  # hub name, folder or file
    vocabulary: str | None  # file of the token ids; None for all that the head knows

    @classmethod
    def of(cls, drafter: str, path: str | None, vocabulary: str | None, target: str) -> HeadChoice:
        """The choice that the keys of a drafter make for the target of this name.

        Raises NoHead if the path is null and no head ships for the target.
        """
        path = head_for(drafter, target) if path is None else path
        if vocabulary == AUTO:
            place = Path(local_path(path)).expanduser()
            file = (place if place.is_dir() else place.parent) / VOCABULARY
            vocabulary = str(file) if file.is_file() else None
        elif vocabulary is not None:
            vocabulary = local_path(vocabulary)
        return cls(path=path, vocabulary=vocabulary)


def with_choice(
    drafter: str, values: Mapping[str, Any], target: str, *, weights: Sequence[str] = WEIGHTS
) -> dict[str, Any]:
    """The values of a drafter with `path` and `vocabulary` spelt out.

    weights: names of files that hold weights, best first. Raises ConfigError if a file is missing.
    """
    chosen = HeadChoice.of(drafter, values["path"], values["vocabulary"], target)
    check_present(chosen.path, weights=weights)
    file = chosen.vocabulary
    if file is not None and not Path(file).expanduser().is_file():
        raise ConfigError(f"drafter.vocabulary={file}: no such file")
    return {**values, "path": chosen.path, "vocabulary": chosen.vocabulary}
