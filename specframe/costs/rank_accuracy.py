"""How often the guess of each rank is right: shipped with a head, or judged on a few answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specframe.costs.calibration import Calibrator
from specframe.costs.rank_counts import RankCounts
from specframe.errors import ConfigError
from specframe.heads.shipped import SCHEME, head_for, local_path
from specframe.planning.cost_table import CostTable, RankTable
from specframe.prompts.reader import BUILTIN, read_prompts
from specframe.session.engine import Engine
from specframe.session.prompt_encoding import Prompt

_EVERY = 7  # one of so many built-in prompts is taken, so that all kinds of them come in
_DOUBT = 2.0  # wrong guesses that are added to each count, since a sample is small


@dataclass(frozen=True, kw_only=True)
class CalibrationSample:
    """How much text guesses are judged on: answers to built-in prompts of all kinds."""

    prompts: int
    tokens: int  # of an answer, at most
    depth: int  # levels of guesses that are judged
    top_k: int  # guesses that are judged at each level


def with_accuracy(
    costs: CostTable,
    engine: Engine,
    config: dict[str, Any],
    *,
    sample: CalibrationSample,
    tick: Callable[[int], None],
) -> CostTable:
    """The table with the accuracy of each network's guesses: shipped with it, else judged now.

    tick(n): called when n more prompts of the sample are done.
    """
    right = {}
    for source in costs.drafts:
        shipped = shipped_accuracy(engine, config, source)
        right[source] = (
            measured_accuracy(engine, source, sample, tick) if shipped is None else shipped
        )
    return replace(costs, right=right)


def measured_accuracy(
    engine: Engine, source: str, sample: CalibrationSample, tick: Callable[[int], None]
) -> RankTable:
    """[D][K] how often a source's guesses are right along the target's own answers."""
    counts = RankCounts(depth=sample.depth, top_k=sample.top_k)
    short = replace(engine.settings, max_new_tokens=sample.tokens)
    calibrator = Calibrator(Engine(engine.components, short), counts, source=source)
    for sequence, prompt in enumerate(calibration_prompts(engine, sample.prompts)):
        with suppress(ConfigError):  # it may be too long for this target
            calibrator.count(prompt, sequence=sequence)
        tick(1)
    pairs = zip(counts.hits(), counts.reached(), strict=True)
    return tuple(tuple(hit / (reached + _DOUBT) for hit in row) for row, reached in pairs)


def shipped_accuracy(engine: Engine, config: dict[str, Any], source: str) -> RankTable | None:
    """The calibration.json that came with a shipped head; None without one of this sampling."""
    drafter = config["drafter"]
    options = {drafter["name"]: drafter}
    options |= {word: {"path": None} for word in drafter.get("sources") or ()}
    options |= {word: value for word, value in drafter.items() if isinstance(value, dict)}
    for word, values in options.items():
        if word.replace("_", "") != source or "path" not in values:
            continue
        with suppress(ConfigError, OSError):
            path = values["path"] or head_for(word, engine.components.target.name)
            file = Path(local_path(path)) / "calibration.json"
            if path.startswith(SCHEME) and file.is_file():
                calibration = json.loads(file.read_text(encoding="utf-8"))
                return accuracy_from(calibration, engine, config)
    return None


def accuracy_from(
    calibration: dict[str, Any], engine: Engine, config: dict[str, Any]
) -> RankTable | None:
    """[D][K] of the values of a calibration.json; None if it was made with another sampling."""
    same_sampling = calibration["sampling"] == config["sampling"]
    same_proposal = calibration["proposal"] == engine.components.how
    return tuple(map(tuple, calibration["accuracy"])) if same_sampling and same_proposal else None


def calibration_prompts(engine: Engine, count: int) -> list[Prompt]:
    """Built-in prompts of all kinds; plain ids for a target without a tokenizer."""
    if engine.components.target.tokenizer is None:
        size = engine.components.target.vocab_size
        return [[(place * place + first) % size for place in range(32)] for first in range(count)]
    return [record.turns[0] for record in read_prompts(BUILTIN)[::_EVERY][:count]]
