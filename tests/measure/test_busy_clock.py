"""Which time counts on a CPU."""

from __future__ import annotations

import time

import torch

from specframe.measure.busy_clock import BusyClock


def test_one_thread_counts_its_own_time() -> None:
    clock = BusyClock(torch.device("cpu"))
    start = clock.now()
    time.sleep(0.05)
    assert (clock.now() - start < 0.04) == (torch.get_num_threads() == 1)
