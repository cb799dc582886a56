"""Runs of a function whose time is not that of the runs to come, and is not taken."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from specframe.runtime.base import Launch


@runtime_checkable
class WarmsUp(Protocol):
    """A launch whose first runs of a function take another time than those to come."""

    warmup_runs: int  # timings to discard before a function is in its steady state


def warmup_runs(launch: Launch) -> int:
    """Timings of a function to discard, at least one."""
    return launch.warmup_runs if isinstance(launch, WarmsUp) else 1
