"""Where tree=auto gets its table of costs: a file, the cache folder, or a short measurement."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from specframe.costs.fingerprint import differences, fingerprint
from specframe.costs.rank_accuracy import CalibrationSample, with_accuracy
from specframe.costs.step_timing import StepTimer, TimingPlan, row_counts
from specframe.costs.stored_costs import load_costs, read_costs, save_costs
from specframe.planning.cost_table import CostTable
from specframe.session.engine import Engine
from specframe.tree.base import TreePolicy

# For an engine that has nothing to draft with: costs decide nothing there.
NO_COSTS = CostTable(rows=(1,), contexts=(1,), pass_ms=((1.0,),))
_SHORT = CalibrationSample(prompts=3, tokens=24, depth=5, top_k=8)


@runtime_checkable
class TakesCosts(Protocol):
    """A tree policy that plans by what steps cost."""

    def with_costs(self, costs: CostTable) -> TreePolicy:
        """The same policy with this table of costs."""


def with_costs(tree: TreePolicy, costs: CostTable) -> TreePolicy:
    """A policy that knows the costs, if it plans by them; any other as it is."""
    return tree.with_costs(costs) if isinstance(tree, TakesCosts) else tree


def provide_costs(engine: Engine, config: dict[str, Any], *, file: str | None) -> CostTable:
    """The costs of this engine's steps, and how often its guesses are right.

    file: a profile.json of task=profile, used even if it is of another machine (which is reported
    on standard error). Without one, a table for the same fingerprint comes from the cache folder;
    else it is measured now, in a few seconds, and stored there. Raises ConfigError for a file that
    is no such table.
    """
    if config["drafter"]["name"] == "none":
        return NO_COSTS
    here = fingerprint(engine, config)
    if file is not None:
        there, costs = read_costs(Path(file))
        other = differences(here, there)
        if other:
            sys.stderr.write(f"specframe: tree.costs={file} is used, but {'; '.join(other)}\n")
        return costs
    max_rows = engine.components.tree.max_nodes + engine.components.drafter.traits.needs.aux_rows
    stored = load_costs(here)
    if stored is not None and stored.rows[-1] >= max_rows:
        return stored
    start = time.monotonic()
    costs = _measured(engine, config, max_rows)
    seconds = time.monotonic() - start
    path = save_costs(here, costs)
    where = "" if path is None else f", kept in {path}"
    sys.stderr.write(
        f"specframe: tree=auto: costs measured on this machine in {seconds:.1f} s{where}; "
        "task=profile measures longer\n"
    )
    return costs


def _measured(engine: Engine, config: dict[str, Any], max_rows: int) -> CostTable:
    rows = row_counts(max_rows, engine.components.runtime.launch.buckets)
    timing = TimingPlan(rows=rows, contexts=(128,), widths=(1, 8), repeats=3)
    capacity = config["cache"].get("capacity")
    costs = StepTimer(engine, timing, capacity=capacity, tick=lambda _: None).table()
    return with_accuracy(costs, engine, config, sample=_SHORT, tick=lambda _: None)
