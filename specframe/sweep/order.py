"""The order of a sweep's points: those that use the same weights follow each other."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_TARGET = ("target", "device", "runtime")  # keys that decide which target is loaded
_DRAFTER = ("experiment", "drafter")
_SWEEPERS = "hydra._internal.core_plugins.basic_sweeper"


def by_weights(points: Sequence[list[str]]) -> list[list[str]]:
    """Points (lists of words) sorted by target, then by drafter; otherwise they stay as they are.

    Targets and drafters come in the order in which they first appear.
    """
    ranks: dict[tuple[str, ...], int] = {}

    def rank(point: Sequence[str], keys: Sequence[str]) -> int:
        own = tuple(word for word in point if word.split("=")[0].split(".")[0].strip("+~") in keys)
        return ranks.setdefault((*keys, *own), len(ranks))

    return sorted(points, key=lambda point: (rank(point, _TARGET), rank(point, _DRAFTER)))


@contextmanager
def points_by_weights(counted: Callable[[int], None]) -> Iterator[None]:
    """Make Hydra's own sweeper use that order; `counted` is told the number of points.

    Hydra takes sweepers from packages of its own name only, so its class is changed for the time of
    one sweep. It is looked up when the sweep starts, since Hydra's search for plugins makes that
    class a second time.
    """
    sweeper = importlib.import_module(_SWEEPERS).BasicSweeper
    original = sweeper.split_arguments
    sweeper.split_arguments = staticmethod(_sorted_batches(original, counted))
    try:
        yield
    finally:
        sweeper.split_arguments = staticmethod(original)


def _sorted_batches(
    split: Callable[..., Any], counted: Callable[[int], None]
) -> Callable[..., Any]:
    """`split_arguments` with sorted points; a batch then has points of one model, if it can."""

    def batches(overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:
        points = by_weights([point for batch in split(overrides, None) for point in batch])
        counted(len(points))
        size = max_batch_size or max(len(points), 1)
        return [points[start : start + size] for start in range(0, len(points), size)]

    return batches
