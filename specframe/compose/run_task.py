"""Runs the task of a composed configuration, with its notices, its prompts and its manifest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from specframe.components import Components
from specframe.compose.build import load, plan
from specframe.compose.overrides import replaced
from specframe.session.engine import Engine
from specframe.session.run_state import recorded
from specframe.storage.run_folder import RunFolder
from specframe.task.base import Job
from specframe.tree.base import explanation_of

_FREE = ("expects", "objective")  # keys that no result depends on


def _notices(parts: Components) -> list[str]:
    """What a person should know of the components before they run."""
    notices = (parts.runtime.weights.lossy, parts.cache.lossy, explanation_of(parts.tree))
    return [notice for notice in notices if notice]


def run(config: DictConfig, *, output_dir: Path, folder: RunFolder | None = None) -> None:
    """Run the task of a configuration. Raises SystemExit with the task's code if it is not 0.

    folder: the locked `output_dir`, which then has a record of the run; None leaves none.
    """
    checked = replace(plan(config), reuse_drafters=True)
    task = checked.bound["task"].make()
    task.check(checked.config)
    prompts = checked.prompts()
    overrides = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []

    def rebuild(more: Sequence[str]) -> Engine:
        return load(replaced(overrides, more))

    engine = checked.load() if task.uses_engine else None
    job = Job(
        engine=cast(Engine, engine),  # a task that loads nothing does not ask for it
        config=checked.config,
        output_dir=output_dir,
        prompt=None if checked.top["prompt"] is None else str(checked.top["prompt"]),
        prompts=prompts,
        rebuild=rebuild,
        overrides=overrides,
        trace=checked.bound["trace"].make(),
    )
    parts = None if engine is None else engine.components
    for notice in [] if parts is None else _notices(parts):
        sys.stderr.write(f"specframe: {notice}\n")
    with ExitStack() as records:
        if folder is not None:
            free = {*_FREE, *(f"task.{key}" for key in task.free)}
            outputs = {f"task.{key}" for key in task.outputs}
            records.enter_context(folder.recorded(free=free, outputs=outputs))
        records.enter_context(recorded(output_dir, engine=engine, config=checked.config))
        code = task.run(job)
    if code:
        raise SystemExit(code)
    if folder is not None and task.repeatable:
        folder.finish()
