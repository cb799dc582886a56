"""What became of each node of a draft, in words: accepted, refused and why, or never reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ACCEPTED, NOT_REACHED, CUT, REFUSED = "accepted", "not reached", "cut by stop", "refused"


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What is known of the rows of a draft after its step."""

    parents: Sequence[int]  # [N] parent row, -1 for the root
    path: Sequence[int]  # rows that the rule accepted, padded with -1
    num_accepted: int  # how many of them were emitted; a stop may have cut the others
    refused: Mapping[int, str]  # the rule's own words for rows that it judged


def node_outcomes(step: StepOutcome) -> list[str | None]:
    """[N] what became of each row, None for the root. Words of dead rows mean nothing."""
    path = [row for row in step.path if row >= 0]
    emitted, stood = set(path[: step.num_accepted]), {0, *path}
    outcomes: list[str | None] = []
    for row, parent in enumerate(step.parents):
        if row == 0:
            outcomes.append(None)
        elif row in emitted:
            outcomes.append(ACCEPTED)
        elif row in path:
            outcomes.append(CUT)
        elif row in step.refused:
            outcomes.append(step.refused[row])
        else:
            outcomes.append(REFUSED if parent in stood else NOT_REACHED)
    return outcomes
