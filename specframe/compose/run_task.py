"""Runs the task of a composed configuration, with its notices, its prompts and its manifest."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from specframe.components import Components
from specframe.compose.build import Plan, load, plan
from specframe.compose.literal_words import as_typed
from specframe.compose.overrides import replaced
from specframe.errors import ConfigError
from specframe.measure.metrics import number_names
from specframe.session.engine import Engine
from specframe.session.run_state import recorded
from specframe.storage.run_folder import RunFolder
from specframe.task.base import Job, Task
from specframe.terminal.progress import waiting
from specframe.tree.base import explanation_of

_FREE = ("expects", "objective")  # keys that no result depends on


def _notices(parts: Components) -> list[str]:
    """What a person should know of the components before they run."""
    notices = (parts.runtime.weights.lossy, parts.cache.lossy, explanation_of(parts.tree))
    return [notice for notice in notices if notice]


def _check_objective(name: str, task: Task) -> None:
    """Raises ConfigError for an objective that is no number of any task."""
    known = {*number_names(), *task.numbers}
    if name.partition(".")[0] not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]!r}?" if near else "give one of them, or leave it out"
        raise ConfigError(
            f"objective={name}: no such number; there are acceptance_length, tokens_per_s, "
            f"num_accepted and others, speedup with task=benchmark; {meant}"
        )


def _loaded(checked: Plan) -> Engine:
    """The engine of a composition; a person sees what is loaded and for how long."""
    words = [f"{axis}={checked.config[axis]['name']}" for axis in ("target", "drafter")]
    with waiting(f"loading {' '.join(words)}"):
        return checked.load()


def _job(
    checked: Plan,
    engine: Engine | None,
    *,
    output_dir: Path,
    prompts: Path | None,
    words: Sequence[str] | None,
) -> Job:
    """What the task is handed."""
    given = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []
    overrides = as_typed(given) if words is None else list(words)
    return Job(
        engine=cast(Engine, engine),  # a task that loads nothing does not ask for it
        config=checked.config,
        output_dir=output_dir,
        prompt=None if checked.top["prompt"] is None else str(checked.top["prompt"]),
        prompts=prompts,
        rebuild=lambda more: load(replaced(overrides, more)),
        overrides=overrides,
        batch_size=checked.top["batch_size"],
        trace=checked.bound["trace"].make(),
    )


def run(
    config: DictConfig,
    *,
    output_dir: Path,
    words: Sequence[str] | None = None,
    folder: RunFolder | None = None,
) -> None:
    """Run the task of a configuration. Raises SystemExit with the task's code if it is not 0.

    words: what it was composed of; None: the words of the Hydra job that is running, if there is
    one. folder: the locked `output_dir`, which then has a record of the run; None leaves none.
    """
    checked = replace(plan(config), reuse_drafters=True)
    task = checked.bound["task"].make()
    _check_objective(checked.top["objective"], task)
    task.check(checked.config)
    prompts = checked.prompts()
    engine = _loaded(checked) if task.uses_engine else None
    job = _job(checked, engine, output_dir=output_dir, prompts=prompts, words=words)
    parts = None if engine is None else engine.components
    for notice in [] if parts is None else _notices(parts):
        sys.stderr.write(f"specframe: {notice}\n")
    with ExitStack() as records:
        if folder is not None:
            free = {*_FREE, *(f"task.{key}" for key in task.free)}
            free |= {"batch_size"} if task.same_in_any_batch else set()
            outputs = {f"task.{key}" for key in task.outputs}
            records.enter_context(folder.recorded(free=free, outputs=outputs))
        records.enter_context(recorded(output_dir, engine=engine, config=checked.config))
        code = task.run(job)
    if code:
        raise SystemExit(code)
    if folder is not None and task.repeatable:
        folder.finish()
