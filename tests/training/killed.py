"""Trains the tiny target in a folder (argument 1) and dies without a word at a step (argument 2).

Run as a program of its own by `test_fit.py`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from specframe.training.head_module import HeadInTraining
from tests.training.small_courses import course, eagle


def main(folder: Path, step: int) -> None:
    """SIGKILL in the midst of a training."""
    torch.set_num_threads(1)
    held = HeadInTraining.training_step

    def training_step(self: HeadInTraining, batch: Any, batch_idx: int) -> Any:
        if self.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return held(self, batch, batch_idx)

    HeadInTraining.training_step = training_step  # type: ignore[method-assign]
    course(folder, eagle(), check_every=5).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
