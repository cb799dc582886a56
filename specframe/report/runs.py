"""Finds runs below folders and reads what they left, also where they were killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.measure.bootstrap import Bootstrap
from specframe.report.numbers import Numbers, by_category, measure
from specframe.report.run_answers import GENERATIONS, ROWS, ReportedAnswer, read_answers

MANIFEST, STATUS, TRACE = "manifest.json", "status.json", "trace.jsonl"


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A run, read from its folder."""

    folder: Path
    name: str  # the folder, as short as it can be written
    task: str  # generate or benchmark
    config: dict[str, Any]
    manifest: dict[str, Any]
    state: str  # of the manifest: running, finished, interrupted or failed
    answers: Sequence[ReportedAnswer]
    num_errors: int  # prompts that could not be answered
    num_planned: int | None  # prompts that it was to answer, where that is known
    numbers: Numbers
    categories: dict[str, Numbers]
    summary: dict[str, Any]  # metrics.json
    trace: Path | None  # trace.jsonl, if the run left one

    @property
    def seed(self) -> Any:
        """The seed of its random streams."""
        return self.config.get("seed")

    @property
    def overall(self) -> dict[str, Any]:
        """A benchmark's numbers over all prompts, or {}."""
        return self.summary.get("overall") or {}


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A point of a sweep that has no numbers."""

    name: str  # the folder, as short as it can be written
    words: str  # overrides of the point
    status: str  # of its status.json
    reason: str  # why it has no numbers


@dataclass(frozen=True, kw_only=True)
class RunList:
    """The runs below some folders, and the points of sweeps that have no numbers."""

    runs: Sequence[FinishedRun]
    missing: Sequence[Missing]

    @property
    def folders(self) -> list[FinishedRun]:
        """One run a folder: of a benchmark that compares several sides, its method alone."""
        return list({run.folder: run for run in reversed(self.runs)}.values())[::-1]


def find(folders: Sequence[Path], *, bootstrap: Bootstrap) -> RunList:
    """Read every run at or below `folders`. Raises ConfigError if there is none."""
    runs: list[FinishedRun] = []
    missing: list[Missing] = []
    seen: set[Path] = set()
    for top in folders:
        if not top.is_dir():
            raise ConfigError(f"task.runs={top}: no such folder; give a run's or a sweep's")
        for folder in _walk(top):
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            run = read_run(folder, name=_name(folder), bootstrap=bootstrap)
            if run is not None:
                runs.append(run)
            elif (folder / STATUS).is_file():
                missing.append(_missing(folder))
    if not runs:
        listed = ", ".join(map(str, folders))
        raise ConfigError(
            f"task.runs={listed}: no answers in there; give the folder of a task=generate or "
            f"task=benchmark run ({ROWS} or {GENERATIONS}), or a folder above it"
        )
    return RunList(runs=runs, missing=missing)


def read_run(folder: Path, *, name: str, bootstrap: Bootstrap) -> FinishedRun | None:
    """The run of a folder; None if it has no answers."""
    answered = read_answers(folder)
    if answered is None or not answered.answers:
        return None
    manifest = _json(folder / MANIFEST)
    config = manifest.get("config")
    benchmarked = (folder / ROWS).is_file()
    summary = _json(folder / "metrics.json")
    split = ((summary.get("overall") or {}).get("method") or {}).get("split")
    phases = split and {key.removesuffix("_ms"): ms for key, ms in split.items()}
    trace = folder / TRACE
    return FinishedRun(
        folder=folder,
        name=name,
        task="benchmark" if benchmarked else "generate",
        config=config if isinstance(config, dict) else {},
        manifest=manifest,
        state=str(manifest.get("state", "unknown")),
        answers=answered.answers,
        num_errors=answered.num_errors,
        num_planned=summary.get("num_planned"),
        numbers=measure(answered.answers, split=phases, bootstrap=bootstrap),
        categories=by_category(answered.answers),
        summary=summary,
        trace=trace if trace.is_file() else None,
    )


def flattened(value: dict[str, Any], above: str = "") -> dict[str, Any]:
    """The same entries with dotted keys in place of nested ones."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict) and item:
            flat |= flattened(item, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = item
    return flat


def _walk(top: Path) -> Iterator[Path]:
    """The folder and those below, in the order in which a sweep numbered them."""
    yield top
    below = [path for path in top.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for folder in sorted(below, key=_order):
        yield from _walk(folder)


def _order(folder: Path) -> tuple[bool, int, str]:
    """Sorts by the point's number in its sweep, or else by the folder's name."""
    number = None
    with suppress(ConfigError):  # another program may have left a file of this name
        number = _json(folder / STATUS).get("number")
    if not isinstance(number, int):
        number = int(folder.name) if folder.name.isdigit() else None
    return number is None, number or 0, folder.name


def _name(folder: Path) -> str:
    """The folder relative to the working directory or in full, whichever is shorter."""
    there, here = str(folder.resolve()), os.path.relpath(folder)
    return min(there, here, key=len)


def _missing(folder: Path) -> Missing:
    status = _json(folder / STATUS)
    return Missing(
        name=_name(folder),
        words=" ".join(map(str, status.get("overrides") or [])),
        status=str(status.get("status", "unknown")),
        reason=str(status.get("reason") or "it left no answers"),
    )


def _json(path: Path) -> dict[str, Any]:
    """The object of a JSON file, {} without the file. Raises ConfigError for another format."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return value
