"""A tracker that fails."""

from __future__ import annotations

from typing import ClassVar

from specframe.tracker.base import TrackedRun, Tracker


class Broken(Tracker):
    """Its server is down."""

    word: ClassVar[str] = "broken"
    package: ClassVar[str] = "json"

    def log(self, run: TrackedRun) -> None:
        raise OSError(f"no server for {run.status}")


class Missing(Broken):
    """Its package is nowhere."""

    word: ClassVar[str] = "missing"
    package: ClassVar[str] = "nowhere.to.be_found"
