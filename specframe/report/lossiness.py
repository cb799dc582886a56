"""What the texts of a lossy rule lost, and which configurations lose least for their speed."""

from __future__ import annotations

from collections.abc import Sequence

from specframe.report.groups import Group


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both, from the best quality to the highest speed."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def logprob_gap(group: Group) -> float | None:
    """Mean log-probability of its texts under the target, less that of plain decoding's texts."""
    mine = group.quality("target_logprob", "method")
    plain = group.quality("target_logprob", "baseline")
    if mine is None or plain is None:
        return 0.0 if group.lossless and group.quality("agreement_tokens") == 1 else None
    return mine - plain


def agreement_percent(group: Group) -> float | None:
    """Percentage of its tokens that are those of the exact text, place by place."""
    share = group.quality("agreement_tokens")
    return None if share is None else 100 * share
