"""A clock for measuring costs: every stamp waits for the device, so that phases add up."""

from __future__ import annotations

import time

import torch

from specframe.measure.clock import Clock


class BusyClock(Clock):
    """A clock that waits for the device at every stamp.

    Where a single thread of a CPU computes, it counts the time of that thread, so that other work
    on the machine does not count; otherwise it counts the time that passes.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, synchronise=True)
        self._device = device
        self._alone = device.type == "cpu" and torch.get_num_threads() == 1

    def now(self) -> float:
        """Seconds, once the device is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.thread_time() if self._alone else time.perf_counter()

    def _stamp(self) -> object:
        return self.now()
