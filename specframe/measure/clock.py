"""The clock of the loop: where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

PHASES = ("draft", "verify", "accept", "commit", "host")


class Clock:
    """Stamps the end of each phase of a step: host time on a CPU, events on a CUDA device.

    Events are read by `durations_ms` only, long after the step, so timing never waits for the
    device. With `synchronise` every stamp waits for the device and is host time instead: phases
    then follow each other without overlap and add up, but the run is slower.
    """

    def __init__(self, device: torch.device, *, synchronise: bool = False) -> None:
        cuda = device.type == "cuda"
        self._cuda = cuda and not synchronise
        self._wait = device if cuda and synchronise else None
        self.marks: list[tuple[str, object]] = []

    def start(self) -> None:
        """A step begins now."""
        self.marks = [("start", self._stamp())]

    def mark(self, phase: str) -> None:
        """A phase of the step ends now."""
        self.marks.append((phase, self._stamp()))

    def durations_ms(self, marks: Sequence[tuple[str, object]]) -> dict[str, float]:
        """Phase -> milliseconds between these stamps. Waits for the device if they are events."""
        spent = dict.fromkeys(PHASES, 0.0)
        for (_, begin), (phase, end) in pairwise(marks):
            spent[phase] += self._between(begin, end)
        return spent

    def _stamp(self) -> object:
        if self._wait is not None:
            torch.cuda.synchronize(self._wait)
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begin: object, end: object) -> float:
        if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            return float(begin.elapsed_time(end))
        assert isinstance(begin, float) and isinstance(end, float)
        return 1e3 * (end - begin)
