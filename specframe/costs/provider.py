"""The table of costs that tree=auto is handed: given, kept, or measured now in a few seconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specframe.costs.calibration import Calibrator, RankCounts
from specframe.costs.fingerprint import (
    differences,
    fingerprint,
    read_costs,
    store_costs,
    stored_costs,
)
from specframe.costs.step_timing import StepTimer, TimingPlan, row_counts
from specframe.errors import ConfigError
from specframe.heads.shipped import SCHEME, head_for, local_path
from specframe.planning.cost_table import CostTable, RankTable
from specframe.prompts.reader import BUILTIN, read_prompts
from specframe.session.engine import Engine, Prompt

NO_COSTS = CostTable(rows=(1,), contexts=(1,), pass_ms=((1.0,),))  # for who has nothing to draft
_EVERY = 7  # built-in prompts that are left out between two, so that all kinds come in
_DOUBT = 2.0  # wrong guesses that are added to each count


@dataclass(frozen=True, kw_only=True)
class CalibrationSample:
    """How much text guesses are judged on: answers to the first built-in prompts of each kind."""

    prompts: int
    tokens: int
    depth: int
    top_k: int


_SHORT = CalibrationSample(prompts=3, tokens=24, depth=5, top_k=8)


def provide_costs(engine: Engine, config: dict[str, Any], *, file: str | None) -> CostTable:
    """The costs of this engine's steps and what its guesses are worth. Raises ConfigError."""
    if config["drafter"]["name"] == "none":
        return NO_COSTS
    here = fingerprint(engine, config)
    if file is not None:
        there, costs = read_costs(Path(file))
        other = differences(here, there)
        if other:
            sys.stderr.write(f"specframe: tree.costs={file} is used, but {'; '.join(other)}\n")
        return costs
    most = engine.parts.tree.max_nodes + engine.parts.drafter.needs.aux_rows
    found = stored_costs(here)
    if found is not None and found.rows[-1] >= most:
        return found
    start = time.monotonic()
    costs = _measured(engine, config, most)
    seconds = time.monotonic() - start
    path = store_costs(here, costs)
    where = "" if path is None else f", kept in {path}"
    sys.stderr.write(
        f"specframe: tree=auto: costs measured on this machine in {seconds:.1f} s{where}; "
        "task=profile measures longer\n"
    )
    return costs


def _measured(engine: Engine, config: dict[str, Any], most: int) -> CostTable:
    rows = row_counts(most, engine.parts.runtime.buckets)
    extent = TimingPlan(rows=rows, contexts=(128,), widths=(1, 8), repeats=3)
    capacity = config["cache"].get("capacity")
    costs = StepTimer(engine, extent, capacity=capacity, tick=lambda _: None).table()
    return with_accuracy(costs, engine, config, sample=_SHORT, tick=lambda _: None)


def with_accuracy(
    costs: CostTable,
    engine: Engine,
    config: dict[str, Any],
    *,
    sample: CalibrationSample,
    tick: Callable[[int], None],
) -> CostTable:
    """The table with what each network's guesses are worth: shipped with it, else judged now."""
    right = {}
    for source in costs.drafts:
        known = shipped_accuracy(engine, config, source)
        right[source] = measured_accuracy(engine, source, sample, tick) if known is None else known
    return replace(costs, right=right)


def measured_accuracy(
    engine: Engine, source: str, sample: CalibrationSample, tick: Callable[[int], None]
) -> RankTable:
    """[D][K] how often its guesses are right along the target's own answers."""
    counts = RankCounts(depth=sample.depth, top_k=sample.top_k)
    short = replace(engine.settings, max_new_tokens=sample.tokens)
    calibrator = Calibrator(Engine(engine.parts, short), counts, source=source)
    for sequence, prompt in enumerate(calibration_prompts(engine, sample.prompts)):
        with suppress(ConfigError):  # it may be too long for this target
            calibrator.count(prompt, sequence=sequence)
        tick(1)
    pairs = zip(counts.hits(), counts.reached(), strict=True)
    return tuple(tuple(hit / (reached + _DOUBT) for hit in row) for row, reached in pairs)


def shipped_accuracy(engine: Engine, config: dict[str, Any], source: str) -> RankTable | None:
    """The table that came with a head, if it was made with this sampling."""
    drafter = config["drafter"]
    options = {drafter["name"]: drafter}
    options |= {word: {"path": None} for word in drafter.get("sources") or ()}
    options |= {word: held for word, held in drafter.items() if isinstance(held, dict)}
    for word, values in options.items():
        if word.replace("_", "") != source or "path" not in values:
            continue
        with suppress(ConfigError, OSError):
            path = values["path"] or head_for(word, engine.parts.target.name)
            file = Path(local_path(path)) / "calibration.json"
            if path.startswith(SCHEME) and file.is_file():
                return accuracy_from(json.loads(file.read_text(encoding="utf-8")), engine, config)
    return None


def accuracy_from(calibration: Any, engine: Engine, config: dict[str, Any]) -> RankTable | None:
    """The shares of a calibration.json, None if it was made with another sampling."""
    same = (
        calibration["sampling"] == config["sampling"]
        and calibration["proposal"] == engine.parts.how
    )
    return tuple(map(tuple, calibration["accuracy"])) if same else None


def calibration_prompts(engine: Engine, count: int) -> list[Prompt]:
    """Built-in prompts of all kinds; plain ids for a target without a tokenizer."""
    if engine.parts.target.tokenizer is None:
        size = engine.parts.target.vocab_size
        return [[(place * place + first) % size for place in range(32)] for first in range(count)]
    return [record.turns[0] for record in read_prompts(BUILTIN)[::_EVERY][:count]]
