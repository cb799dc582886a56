"""Writes an HTML page about finished runs: what is fast, why, and how each tree was walked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from specframe.errors import ConfigError
from specframe.measure.bootstrap import Bootstrap
from specframe.registry import Range
from specframe.report.cells import counted
from specframe.report.comparable import ranked
from specframe.report.groups import group_runs
from specframe.report.page import render
from specframe.report.paired import compare
from specframe.report.run_sides import with_sides
from specframe.report.runs import FinishedRun, find
from specframe.report.summary import Content
from specframe.report.traces import TraceReader
from specframe.storage.whole_files import write_whole
from specframe.task.base import TASKS, Job, Task
from specframe.terminal.progress import StepProgress

_STAGES = 5  # of making a report, for its progress


@TASKS.register("report")
class Report(Task):
    """Compares finished runs on one HTML page, which needs no network and no file beside it.

    `runs` are folders of task=generate or task=benchmark, or folders above them (a sweep, or
    `outputs`). Killed runs count as far as they got. Runs that differ in their seed alone form one
    configuration. The page explains each configuration by its numbers (tokens a pass, what a pass
    costs in plain steps, where its time goes), compares configurations pair by pair over prompts,
    and shows the trees of runs with trace=steps. No model is loaded.

    The run leaves `output`, which is report.html by default.
    """

    uses_drafter: ClassVar[bool] = False
    uses_engine: ClassVar[bool] = False
    outputs: ClassVar[tuple[str, ...]] = ("output",)

    def __init__(
        self,
        *,
        runs: str | list[str],
        output: str,
        title: str | None,
        max_steps: Annotated[int, Range(0, 1_000_000)],
        resamples: Annotated[int, Range(100, 100_000)],
        confidence: Annotated[float, Range(0.5, 0.999)],
    ) -> None:
        self.runs = [runs] if isinstance(runs, str) else runs
        self.output = output
        self.title = title
        self.max_steps = max_steps
        self.bootstrap = Bootstrap(resamples=resamples, confidence=confidence)

    def check(self, config: dict[str, Any]) -> None:
        if not self.runs:
            raise ConfigError("task.runs is empty; give the folder of a run or a sweep")
        for folder in self.runs:
            if not Path(folder).is_dir():
                raise ConfigError(f"task.runs={folder}: no such folder; give a run's or a sweep's")

    def run(self, job: Job) -> int:
        with StepProgress("report", total=_STAGES) as progress:
            progress.begin("reading runs")
            runs = find([Path(folder) for folder in self.runs], bootstrap=self.bootstrap)
            listed = with_sides(runs, bootstrap=self.bootstrap)
            progress.add(1)
            progress.begin("sorting configurations")
            groups = ranked(group_runs(listed.runs, bootstrap=self.bootstrap))
            progress.add(1)
            progress.begin("comparing pairs")
            comparisons = compare(groups, bootstrap=self.bootstrap)
            progress.add(1)
            progress.begin("reading traces")
            traces = self._traces(listed.runs)
            progress.add(1)
            progress.begin("drawing")
            page = render(
                Content(
                    title=self.title or ", ".join(Path(one).resolve().name for one in self.runs),
                    listed=listed,
                    groups=groups,
                    comparisons=comparisons,
                    confidence=self.bootstrap.confidence,
                    traces=traces,
                )
            )
            progress.add(1)
        path = job.output_dir / self.output
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode("utf-8", errors="xmlcharrefreplace"))
        print(f"{counted(len(listed.folders), 'run')}, {counted(len(groups), 'configuration')}")
        print(f"written to {os.path.relpath(path)}")
        return 0

    def _traces(self, runs: Sequence[FinishedRun]) -> dict[str, TraceReader]:
        readers = {}
        for run in runs:
            if run.trace is not None and self.max_steps:
                reader = TraceReader(max_steps=self.max_steps).read(run.trace)
                if reader.num_steps:
                    readers[run.name] = reader
        return readers
