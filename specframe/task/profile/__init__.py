"""Measures what steps cost on this machine, and says which tree would be the fastest."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from specframe.costs.ceilings import Ceilings, MeasuredPass, PassWorkload, measure_ceilings
from specframe.costs.fingerprint import fingerprint
from specframe.costs.rank_accuracy import (
    CalibrationSample,
    accuracy_from,
    measured_accuracy,
    with_accuracy,
)
from specframe.costs.step_timing import StepTimer, TimingPlan, row_counts
from specframe.costs.stored_costs import save_costs
from specframe.errors import ConfigError
from specframe.planning.cost_table import CostTable, RankTable
from specframe.registry import Range
from specframe.session.manifest import write_json
from specframe.task.base import TASKS, Job, Task
from specframe.task.profile.advice import Advice, phase_times
from specframe.task.profile.roofline import roofline
from specframe.terminal.progress import StepProgress

_DEPTH, _TOP_K = 5, 8  # levels and guesses a node in the short count of right guesses
Count = Annotated[int, Range(1, 4096)]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """Everything that a run measured."""

    costs: CostTable
    shares: dict[str, RankTable]  # source -> how often its guesses are right, look-ups included
    ceilings: Ceilings
    passes: list[MeasuredPass]  # empty for a target without weights
    split: dict[str, float]  # milliseconds by phase


@TASKS.register("profile")
class Profile(Task):
    """Measures costs: of passes by rows, of the drafter's levels by width, and the device's limits.

    Passes of 1, 2, 4, ... rows are timed with the composed target, cache and runtime behind texts
    of several lengths. On one thread of a CPU, the thread's own time is taken, which a busy machine
    does not disturb. From the costs the task says where a run's time goes and which tree is the
    fastest. How often guesses are right comes from `calibration` (a file of task=calibrate), or is
    shipped with the head, or is counted over a few built-in prompts.

    The table is stored in the user's cache under its fingerprint (machine, threads, torch, dtype,
    runtime, cache, target, drafter, sampling), where tree=auto looks for it. The run leaves
    profile.json, which tree.costs= takes too, and roofline.svg.
    """

    measures_costs: ClassVar[bool] = True

    def __init__(
        self,
        *,
        rows: Annotated[int, Range(2, 4096)],
        contexts: list[Annotated[int, Range(2, None)]],
        widths: list[Count],
        repeats: Annotated[int, Range(1, 1000)],
        calibration: str | None,
        prompts: Count,
        tokens: Annotated[int, Range(2, None)],
    ) -> None:
        for name, values in (("contexts", contexts), ("widths", widths)):
            if not values or values != sorted(set(values)):
                raise ValueError(f"task.{name}={values} must grow, such as [1, 8]")
        self.extent = (rows, tuple(contexts), tuple(widths), repeats)
        self.calibration = calibration
        self.sample = CalibrationSample(prompts=prompts, tokens=tokens, depth=_DEPTH, top_k=_TOP_K)

    def run(self, job: Job) -> int:
        results = self._measure(job)
        here = fingerprint(job.engine, job.config)
        path = save_costs(here, results.costs)
        advice = Advice(
            costs=results.costs,
            shares=results.shares,
            split=results.split,
            max_rows=self.extent[0],
            closed=job.engine.components.how != "place",
        )
        profile = {
            "fingerprint": here,
            "costs": results.costs.as_dict(),
            "shares": results.shares,
            "ceilings": vars(results.ceilings),
            "passes": [each.as_dict(results.ceilings) for each in results.passes],
            "split": results.split,
            "sentences": advice.sentences(),
        }
        write_json(job.output_dir / "profile.json", profile)
        if results.passes:
            title = f"{job.engine.components.target.name}: passes below the roof of this machine"
            svg = roofline(results.passes, results.ceilings, title=title)
            (job.output_dir / "roofline.svg").write_text(svg, encoding="utf-8")
        advice.show(results.passes, results.ceilings)
        print(f"written to {job.output_dir}" + ("" if path is None else f", stored in {path}"))
        return 0

    def _measure(self, job: Job) -> _Measured:
        engine, (most, contexts, widths, repeats) = job.engine, self.extent
        aux = engine.components.drafter.traits.needs.aux_rows
        plan = TimingPlan(
            rows=row_counts(most + aux, engine.components.runtime.launch.buckets),
            contexts=contexts,
            widths=widths,
            repeats=repeats,
        )
        known = self._given(job)
        with StepProgress("profile", total=plan.num_steps + self.sample.prompts + 1) as progress:
            capacity = job.config["cache"].get("capacity")
            timer = StepTimer(engine, plan, capacity=capacity, tick=progress.add)
            costs = timer.table()
            weights = PassWorkload.of(engine.components.target, engine.components.cache)
            ceilings = measure_ceilings(
                engine.components.target, engine.components.runtime.weights, timer.now
            )
            if known is None:
                costs = with_accuracy(
                    costs, engine, job.config, sample=self.sample, tick=progress.add
                )
            else:
                costs = replace(costs, right=dict.fromkeys(costs.drafts, known))
            shares = dict(costs.right)
            for source in timer.lookup_sources:
                given = known or measured_accuracy(engine, source, self.sample, progress.add)
                shares[source] = given
            split = phase_times(engine, costs, self.sample, progress.add)
        passes = _passes(costs, weights)
        return _Measured(
            costs=costs,
            shares=shares,
            ceilings=ceilings.above(passes),
            passes=passes,
            split=split,
        )

    def _given(self, job: Job) -> RankTable | None:
        """How often guesses are right by `task.calibration`, None without. Raises ConfigError."""
        if self.calibration is None:
            return None
        try:
            calibration = json.loads(Path(self.calibration).read_text(encoding="utf-8"))
            shares = accuracy_from(calibration, job.engine, job.config)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"task.calibration={self.calibration}: no calibration.json of task=calibrate "
                f"({error}); make one, or give null"
            ) from None
        if shares is None:
            sys.stderr.write(
                f"specframe: task.calibration={self.calibration} was counted with another sampling "
                "or tree.proposal, so guesses are counted anew\n"
            )
        return shares


def _passes(costs: CostTable, weights: PassWorkload | None) -> list[MeasuredPass]:
    if weights is None:
        return []
    return [
        weights.of_pass(rows, context, ms)
        for context, line in zip(costs.contexts, costs.forward_ms, strict=True)
        for rows, ms in zip(costs.rows, line, strict=True)
    ]
