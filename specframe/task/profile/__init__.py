"""Measures what steps cost here, draws the roofline, and says which tree would be fastest."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from specframe.costs.ceilings import Ceilings, MeasuredPass, Weights, measured
from specframe.costs.costing import Costing, Extent, row_counts
from specframe.costs.fingerprint import fingerprint, keep
from specframe.costs.supply import CostSample, judged, shares_of, with_shares
from specframe.errors import ConfigError
from specframe.planning.cost_table import CostTable, RankTable
from specframe.registry import Range
from specframe.session.manifest import write_json
from specframe.task.base import TASKS, Job, Task
from specframe.task.profile.findings import Findings, split_of
from specframe.task.profile.roofline import roofline
from specframe.terminal.progress import StepProgress

_DEPTH, _TOP_K = 5, 8  # of the short count of right guesses
Count = Annotated[int, Range(1, 4096)]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """All that a run found."""

    costs: CostTable
    shares: dict[str, RankTable]  # of look-ups too
    ceilings: Ceilings
    passes: list[MeasuredPass]
    split: dict[str, float]


@TASKS.register("profile")
class Profile(Task):
    """Times passes of 1, 2, 4, ... rows with the composed target, cache and runtime behind texts
    of several lengths, the drafter's levels by their width, and the device's own limits.

    Keeps the table under its fingerprint (machine, threads, torch, dtype, runtime, cache, target,
    drafter, sampling) in the user's cache, where tree=auto finds it; another fingerprint has
    another table. Where one thread of a CPU computes, its own time counts, so that a busy machine
    does not. Writes profile.json (for tree.costs=FILE too) and roofline.svg, and says where a
    run's time goes and which tree is the fastest, by the shares of calibration (of task=calibrate),
    those shipped with the head, or a short count over built-in prompts.
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
        self.sample = CostSample(prompts=prompts, tokens=tokens, depth=_DEPTH, top_k=_TOP_K)

    def run(self, job: Job) -> int:
        found = self._measure(job)
        here = fingerprint(job.engine, job.config)
        path = keep(here, found.costs)
        findings = Findings(
            costs=found.costs,
            shares=found.shares,
            split=found.split,
            rows=self.extent[0],
            closed=job.engine.parts.how != "place",
        )
        held = {
            "fingerprint": here,
            "costs": found.costs.as_dict(),
            "shares": found.shares,
            "ceilings": vars(found.ceilings),
            "passes": [one.as_dict(found.ceilings) for one in found.passes],
            "split": found.split,
            "sentences": findings.sentences(),
        }
        write_json(job.output_dir / "profile.json", held)
        if found.passes:
            title = f"{job.engine.parts.target.name}: passes below the roof of this machine"
            svg = roofline(found.passes, found.ceilings, title=title)
            (job.output_dir / "roofline.svg").write_text(svg, encoding="utf-8")
        findings.show(found.passes, found.ceilings)
        print(f"written to {job.output_dir}" + ("" if path is None else f", kept in {path}"))
        return 0

    def _measure(self, job: Job) -> _Measured:
        engine, (most, contexts, widths, repeats) = job.engine, self.extent
        aux = engine.parts.drafter.needs.aux_rows
        extent = Extent(
            rows=row_counts(most + aux, engine.parts.runtime.buckets),
            contexts=contexts,
            widths=widths,
            repeats=repeats,
        )
        known = self._given(job)
        with StepProgress("profile", total=extent.num_steps + self.sample.prompts + 1) as progress:
            capacity = job.config["cache"].get("capacity")
            costing = Costing(engine, extent, capacity=capacity, tick=progress.add)
            costs = costing.table()
            weights = Weights.of(engine.parts.target, engine.parts.cache)
            ceilings = measured(engine.parts.target, costing.now)
            if known is None:
                costs = with_shares(
                    costs, engine, job.config, sample=self.sample, tick=progress.add
                )
            else:
                costs = replace(costs, right=dict.fromkeys(costs.drafts, known))
            shares = dict(costs.right)
            for source in costing.looked_up:
                given = known or judged(engine, source, self.sample, progress.add)
                shares[source] = given
            split = split_of(engine, costs, self.sample, progress.add)
        passes = _passes(costs, weights)
        return _Measured(
            costs=costs,
            shares=shares,
            ceilings=ceilings.above(passes),
            passes=passes,
            split=split,
        )

    def _given(self, job: Job) -> RankTable | None:
        """The shares of `task.calibration`. Raises ConfigError."""
        if self.calibration is None:
            return None
        try:
            held = json.loads(Path(self.calibration).read_text(encoding="utf-8"))
            found = shares_of(held, job.engine, job.config)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"task.calibration={self.calibration}: no calibration.json of task=calibrate "
                f"({error}); make one, or give null"
            ) from None
        if found is None:
            sys.stderr.write(
                f"specframe: task.calibration={self.calibration} was counted with another sampling "
                "or tree.proposal, so guesses are counted anew\n"
            )
        return found


def _passes(costs: CostTable, weights: Weights | None) -> list[MeasuredPass]:
    if weights is None:
        return []
    return [
        weights.of_pass(rows, context, ms)
        for context, line in zip(costs.contexts, costs.forward_ms, strict=True)
        for rows, ms in zip(costs.rows, line, strict=True)
    ]
