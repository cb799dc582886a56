"""Counts and times one answer as it is decoded, without a read from the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.measure.clock import Clock
from specframe.measure.metrics import DepthCount, Metrics, extend_depths
from specframe.records import StepRecord


@dataclass(frozen=True)
class _Step:
    num_rows: int
    num_accepted: int
    last_row: int | None  # last accepted row (0 for the root); None if a stop cut the path


class Meter:
    """Observes one answer: call `begin`, decode with the meter as observer, then `end`.

    Nothing is read from the device in the loop. A step leaves a copy of its draft's shape (three
    integers a row) and the stamps of its clock; `end` reads them all at once and lets them go.
    synchronise: as the clock of the loop has it.
    """

    def __init__(self, device: torch.device, *, synchronise: bool = False) -> None:
        self._clock = Clock(device, synchronise=synchronise)
        self._metrics = Metrics()
        self._marks: list[list[tuple[str, object]]] = []
        self._shapes: list[Tensor] = []
        self._steps: list[_Step] = []

    @property
    def num_steps(self) -> int:
        """The number of verify passes so far."""
        return self._metrics.num_steps

    def begin(self) -> None:
        """The prompt comes in now: time counts from here."""
        self._clock.start()

    def observe(self, record: StepRecord) -> None:
        draft, counts = record.draft, self._metrics
        counts.num_steps += 1
        counts.num_step_tokens += len(record.tokens)
        counts.num_accepted += record.num_accepted
        counts.num_cut += record.was_cut
        counts.num_draft_rows += draft.num_rows
        counts.num_draft_rows += 0 if draft.aux is None else draft.aux.tokens.shape[0]
        counts.only_chains &= draft.chain
        counts.synthetic |= draft.synthetic
        self._marks.append(record.marks)  # the engine adds the last mark after this call
        self._shapes.append(torch.stack([draft.alive.long(), draft.depths, draft.parents]))
        last = None if record.was_cut else (record.path[-1] if record.path else 0)
        self._steps.append(_Step(draft.num_rows, record.num_accepted, last))

    def end(self, *, first_tokens: int = 1) -> Metrics:
        """The answer is complete: returns its metrics.

        first_tokens: that the prefill emitted; 0 where nothing could be said.
        """
        self._clock.mark("host")
        counts = self._metrics
        counts.num_tokens = counts.num_step_tokens + first_tokens
        counts.num_target_forwards = counts.num_steps + 1
        self._add_times()
        self._add_depths()
        counts.check()
        self._marks, self._shapes, self._steps = [], [], []
        return counts

    def _add_times(self) -> None:
        counts, (begun, ended) = self._metrics, self._clock.marks
        steps = [mark for marks in self._marks for mark in marks]
        # The start of a step ends the time since the step before, which belongs to the host.
        steps = [("host", stamp) if phase == "start" else (phase, stamp) for phase, stamp in steps]
        first = steps[0] if steps else ended
        counts.phase_ms = self._clock.durations_ms(steps)
        counts.prefill_s = _seconds(self._clock.durations_ms([begun, first]))
        counts.decode_s = _seconds(counts.phase_ms)
        counts.total_s = _seconds(self._clock.durations_ms([begun, ended]))

    def _add_depths(self) -> None:
        if not self._shapes:
            return
        alive, depths, parents = torch.cat(self._shapes, dim=1).tolist()
        start = 0
        for step in self._steps:
            rows = range(start, start + step.num_rows)
            live = [(depths[row], parents[row]) for row in rows if alive[row] and depths[row] > 0]
            _count_step(self._metrics.depths, step, live)
            self._metrics.num_drafted += len(live)
            start += step.num_rows


def _count_step(depths: list[DepthCount], step: _Step, live: Sequence[tuple[int, int]]) -> None:
    """live: (depth, parent row) of the drafted nodes of one step."""
    drafted = {depth for depth, _ in live}
    extend_depths(depths, max(drafted, default=0))
    for depth in drafted:
        depths[depth - 1].drafted += 1
    for count in depths[: step.num_accepted]:
        count.reached += 1
        count.accepted += 1
    if step.last_row in {parent for _, parent in live}:
        depths[step.num_accepted].reached += 1  # the walk stopped above a child


def _seconds(phase_ms: dict[str, float]) -> float:
    return sum(phase_ms.values()) / 1e3
