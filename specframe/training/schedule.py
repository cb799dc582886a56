"""The keys that every recipe's YAML has: where training starts, how long and how fast it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from specframe.registry import Range


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """AdamW with a linear warm-up, then cosine decay to a tenth of the rate, or a constant rate."""

    start: str | None  # trained head (also a published one) to go on from; null: a fresh head
    max_steps: Annotated[int, Range(1, None)]
    batch_tokens: Annotated[int, Range(1, None)]  # sequences of a batch times their longest length
    lr: Annotated[float, Range(0.0, None, low_open=True)]  # peak rate
    betas: tuple[float, float]
    weight_decay: Annotated[float, Range(0.0, None)]
    warmup_steps: Annotated[int, Range(0, None)]
    decay_lr: Literal["cosine", "constant"]
    clip: Annotated[float, Range(0.0, None, low_open=True)] | None  # of each gradient's value
    precision: Literal["32-true", "bf16-mixed"]  # of Lightning's Trainer
    dtype: Literal["float32", "float64", "bfloat16", "float16"]  # of the exported head

    def factor(self, step: int) -> float:
        """Share of `lr` at an optimiser step (from 0)."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.decay_lr == "constant":
            return 1.0
        span = max(1, self.max_steps - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / span)
        return 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
