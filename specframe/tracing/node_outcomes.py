"""What became of each node of a draft, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ACCEPTED, NOT_REACHED, CUT, REFUSED = "accepted", "not reached", "cut by stop", "refused"


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What is known of the rows of a draft after its step. parents [N], root -1; path: rows that
    the rule accepted, padded with -1; num_accepted: of those, how many were emitted; refused: the
    rule's own words for rows that it judged."""

    parents: Sequence[int]
    path: Sequence[int]
    num_accepted: int
    refused: Mapping[int, str]


def node_outcomes(fate: StepOutcome) -> list[str | None]:
    """[N] None for the root; dead rows get words, too, which nobody shows."""
    path = [row for row in fate.path if row >= 0]
    emitted, stood = set(path[: fate.num_accepted]), {0, *path}
    found: list[str | None] = []
    for row, parent in enumerate(fate.parents):
        if row == 0:
            found.append(None)
        elif row in emitted:
            found.append(ACCEPTED)
        elif row in path:
            found.append(CUT)
        elif row in fate.refused:
            found.append(fate.refused[row])
        else:
            found.append(REFUSED if parent in stood else NOT_REACHED)
    return found
