"""A peer as a side of a benchmark: its answers, timed as ours are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specframe.measure.metrics import Metrics
from specframe.task.benchmark.passes import watched_forwards
from specframe.task.benchmark.peers import Way
from specframe.task.benchmark.sides import Side, TimeSample, TimeSplit, Timing


@dataclass(kw_only=True)
class PeerSide(Side):
    """One way in which a peer answers.

    `engine` is one of ours on the same target; it encodes prompts and decodes answers.
    """

    way: Way
    model: Any  # of transformers, whose forwards are timed

    def answer(self, prompt: Sequence[int], sequence: int) -> TimeSample:
        device = self.engine.components.target.device
        start = time.perf_counter()
        with watched_forwards(self.model, device) as watched:
            tokens = self.way.answer(list(prompt))
        total = time.perf_counter() - start
        passes = watched.seconds()
        # The first pass reads the prompt. A peer may verify a draft in it too.
        first = passes[0] if passes else total
        steps = max(len(passes) - 1, 0)
        metrics = Metrics(
            num_tokens=len(tokens),
            num_step_tokens=len(tokens) - 1,
            num_steps=steps,
            num_target_forwards=len(passes),
            num_accepted=len(tokens) - 1 - steps if passes else 0,
            prefill_s=first,
            decode_s=total - first,
            total_s=total,
        )
        timing = Timing(
            first_s=first,
            prefill_s=first,
            decode_s=total - first,
            total_s=total,
            step_ms=[],
            forward_s=sum(passes) if passes else None,
        )
        return TimeSample(
            tokens=tokens,
            finish_reason="eos" if tokens[-1] in self.engine.eos_ids else "length",
            metrics=metrics,
            step_tokens=[],
            timing=timing,
            peak_memory_bytes=None,
            warm=None,
        )

    def split(self, prompt: Sequence[int], sequence: int) -> TimeSplit | None:
        return None
