"""Tasks as functions: they take the words of the command line and return their results as tables.

    from specframe.api import tasks

    tasks.benchmark(["drafter=ngram", "tree=chain", "data=builtin"])
    tasks.sweep(["drafter=ngram", "tree=chain,dynamic", "tree.max_nodes=8,16"])

Weights stay loaded between the calls, as they do in a sweep. Trackers and launchers are Hydra's and
belong to the command line.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

from specframe.api.run_result import RunResult
from specframe.api.task_tables import (
    answers_table,
    benchmark_tables,
    certificate_table,
    numbers_of,
    report_table,
)
from specframe.compose.explain import swept
from specframe.compose.overrides import checked_words, compose
from specframe.compose.run_task import run as run_task
from specframe.errors import ConfigError, IncompatibleComponents, describe_error
from specframe.measure.bootstrap import Bootstrap
from specframe.session.row_table import RowTable
from specframe.sweep.point import FAILED, OK, SKIPPED
from specframe.sweep.point_numbers import numbers_in

Folder = str | Path | None


def generate(words: Sequence[str] = (), *, folder: Folder = None) -> RunResult:
    """Answer prompts. Table: answers. Arguments and errors as in `benchmark`."""
    return _run("generate", words, folder)


def benchmark(words: Sequence[str] = (), *, folder: Folder = None) -> RunResult:
    """Measure a method beside plain decoding. Tables: sides, overall, categories.

    words: as on the command line, without `task=`. folder: where the run leaves its files; None: a
    new one below outputs/. Raises ConfigError, IncompatibleComponents or MissingResource with the
    command line's own sentences.
    """
    return _run("benchmark", words, folder)


def certify(words: Sequence[str] = (), *, folder: Folder = None) -> RunResult:
    """Check whether a combination is exact. Table: checks; `numbers["verdict"]` is the sentence."""
    return _run("certify", words, folder)


def report(
    runs: Sequence[str | Path], words: Sequence[str] = (), *, folder: Folder = None
) -> RunResult:
    """Compare finished runs, given by their folders or by folders above them.

    Table: configurations, the fastest first. The page is `report.html` in the folder.
    """
    if isinstance(runs, (str, Path)) or not runs:
        raise ConfigError("runs: give a list of folders, such as ['outputs']")
    quoted = ",".join('"' + str(run).replace('"', '\\"') + '"' for run in runs)
    return _run("report", [f"task.runs=[{quoted}]", *checked_words(words)], folder)


def sweep(words: Sequence[str], *, task: str = "benchmark", folder: Folder = None) -> RunResult:
    """Run a task at every point of a grid: words with several values, such as `tree.depth=2,4`.

    Table: points, a row each, with the values that differ, how it ended (ok, skipped, failed), its
    numbers by dotted name and the reason of a failure. A point that fails ends nothing; the exit
    code is then 1. Each has a folder of its own, numbered from 0.
    """
    axes = [swept(word) for word in checked_words(words)]
    top, rows = _folder(folder), []
    for number, point in enumerate(product(*axes)):
        pairs = zip(axes, (word.partition("=") for word in point), strict=True)
        varied = {key: value for choices, (key, _, value) in pairs if len(choices) > 1}
        rows.append(varied | _point(task, point, top / str(number)))
    failed = any(row["status"] == FAILED for row in rows)
    return RunResult(
        task=task,
        folder=top,
        exit_code=int(failed),
        printed="",
        numbers={},
        tables={"points": RowTable(rows)},
    )


def _point(task: str, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """One point of a sweep: how it ended, and its numbers."""
    try:
        code = _run(task, words, folder).exit_code
    except IncompatibleComponents as error:
        return {"status": SKIPPED, "reason": str(error)}
    except Exception as error:
        return {"status": FAILED, "reason": describe_error(error)}
    status = FAILED if code else OK
    return {"status": status, **numbers_in(folder), "reason": f"exit code {code}" if code else ""}


def _run(task: str, words: Sequence[str], folder: Folder) -> RunResult:
    chosen = [f"task={task}", *checked_words(words)]
    for word in chosen[1:]:
        if word.startswith(("-", "hydra")):
            raise ConfigError(f"{word}: flags and Hydra's own keys belong to the command line")
    config, target, printed = compose(chosen), _folder(folder), io.StringIO()
    code = 0
    target.mkdir(parents=True, exist_ok=True)
    try:
        with redirect_stdout(printed):
            run_task(config, output_dir=target, words=chosen)
    except SystemExit as ended:
        code = int(ended.code or 0)
    numbers = numbers_of(target)
    return RunResult(
        task=task,
        folder=target,
        exit_code=code,
        printed=printed.getvalue(),
        numbers=numbers,
        tables=_tables(task, config, target, numbers),
    )


def _tables(task: str, config: Any, folder: Path, numbers: dict[str, Any]) -> dict[str, RowTable]:
    if task == "generate":
        return answers_table(folder)
    if task == "benchmark":
        return benchmark_tables(numbers)
    if task == "certify":
        return certificate_table(numbers)
    if task == "report":
        keys = config.task
        bootstrap = Bootstrap(resamples=keys.resamples, confidence=keys.confidence)
        return report_table([Path(run) for run in keys.runs], bootstrap=bootstrap)
    return {"numbers": RowTable([numbers_in(folder)])}


def _folder(folder: Folder) -> Path:
    """The folder of a run; where none is given, one as the command line names it."""
    return Path(folder) if folder else Path("outputs") / f"{datetime.now():%Y-%m-%d/%H-%M-%S_%f}"
