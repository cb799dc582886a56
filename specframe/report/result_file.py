"""Result files: what a benchmark or a command gave, with all that a reader needs to repeat it.

A result file is JSON under `specframe/report/results/`, committed beside the READMEs that show it.
It is made from the folders that runs of task=benchmark leave, never by hand.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specframe.errors import ConfigError
from specframe.measure.bootstrap import Bootstrap
from specframe.report.conditions import check_one_table
from specframe.report.runs import FinishedRun, find
from specframe.storage.whole_files import write_whole

Values = dict[str, Any]  # of a JSON object
_METHOD, _BASELINE = "method", "baseline"  # names of sides in the rows of a benchmark
_LABELS = ("drafter", "tree", "accept", "cache", "runtime", "target")  # axes that name a row
_NOT_SHOWN = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")  # words of a command
_FOLDERS = re.compile(r"(?<=[=\[,\s\"'])/(?:[^/\s,\"']+/)*(?=[^/\s,\"'])")  # of an absolute path


def result_of(folders: Sequence[Path]) -> Values:
    """The result of the benchmark runs in or below `folders`, a sweep's among them.

    Every run of several gives one row, of its method; a single run gives one a side, plain decoding
    among them. Raises ConfigError if a folder has no benchmark, or one that did not finish.
    """
    runs = find(folders, bootstrap=Bootstrap(resamples=100, confidence=0.95)).runs
    for run in runs:
        if run.task != "benchmark" or run.state != "finished" or not run.summary.get("overall"):
            raise ConfigError(
                f"{run.name}: a {run.state} run of task={run.task}; give finished runs of "
                "task=benchmark"
            )
    first = runs[0]
    check_one_table(runs, named=(*_LABELS, "sampling"))
    comparison = first.summary.get("comparison") or {}
    return {
        "kind": "benchmark",
        "date": str(first.manifest.get("started"))[:10],
        "commands": list(dict.fromkeys(command_of(run.manifest["command"]) for run in runs)),
        **surroundings_of(first.manifest),
        **_conditions(first),
        "rows": _sides(first) if len(runs) == 1 else [_method(run, runs) for run in runs],
        "lanes": first.summary.get("batches") or [],
        "passes": [_passes(each) for each in comparison.get("passes") or []],
        "memory": (comparison.get("machine") or {}).get("memory"),
    }


def surroundings_of(manifest: Values) -> Values:
    """Commit, machine and versions, as a manifest gives them."""
    machine = manifest.get("hardware") or {}
    packages = manifest.get("packages") or {}
    return {
        "commit": (manifest.get("git") or {}).get("commit"),
        "hardware": {
            "processor": machine.get("cpu"),
            "threads": machine.get("torch_threads"),
            "memory_bytes": machine.get("memory_bytes"),
            "device": (machine.get("cuda") or {}).get("device"),
        },
        "versions": {
            "specframe": manifest.get("specframe"),
            "python": manifest.get("python"),
            **{name: packages[name] for name in ("torch", "transformers") if name in packages},
        },
    }


def command_of(arguments: Sequence[str]) -> str:
    """A command as a reader types it: without output folders and without paths of this machine."""
    words = [word for word in arguments[1:] if word.partition("=")[0] not in _NOT_SHOWN]
    return _FOLDERS.sub("", shlex.join(["python", "-m", "specframe", *words]))


def write_result(path: Path, result: Values) -> None:
    """Write a result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"{json.dumps(result, indent=1, ensure_ascii=False)}\n".encode())


def read_result(path: Path) -> Values:
    """Read a result file. Raises ConfigError if it is not one."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error})") from None
    if not isinstance(result, dict) or "kind" not in result:
        raise ConfigError(f"{path}: not a result file; make it with `results add`")
    return result


def _conditions(run: FinishedRun) -> Values:
    """What was asked of every row."""
    config, target = run.config, run.manifest.get("target") or {}
    return {
        "target": {key: target.get(key) for key in ("name", "dtype")},
        "num_prompts": run.overall["num_prompts"],
        "max_new_tokens": config.get("max_new_tokens"),
        "temperature": (config.get("sampling") or {}).get("temperature"),
        "rounds": (config.get("task") or {}).get("rounds"),
        "confidence": run.summary.get("confidence"),
    }


def _sides(run: FinishedRun) -> list[Values]:
    """A row a side of a single run."""
    lines = (run.summary.get("comparison") or {}).get("sides")
    counts = _counts(run.folder / "rows.jsonl")
    if lines is None:
        plain = _plain_row(run.overall[_BASELINE]) if _BASELINE in run.overall else None
        rows = [] if plain is None else [{**plain, **counts[_BASELINE]}]
        return [*rows, _method(run, [run])]
    rows = []
    for line in lines:
        row = {**_row_of_line(line), **counts[line["name"]]}
        if line["peer"]:
            row["rows_per_pass"] = None  # what a peer verifies is not known
        rows.append(row | (_intervals(run.overall) if line["name"] == _METHOD else {}))
    return rows


def _method(run: FinishedRun, runs: Sequence[FinishedRun]) -> Values:
    """The row of a run's method, called by what sets it apart from the other runs."""
    overall = run.overall
    categories = run.summary.get("categories") or {}
    speeds = {name: each["speedup"] for name, each in categories.items() if "speedup" in each}
    return {
        "label": _label(run, runs),
        "synthetic": overall[_METHOD]["synthetic"],
        "tokens_per_s": overall[_METHOD]["tokens_per_s_end_to_end"],
        "speedup": overall.get("speedup_end_to_end"),
        "speedup_decode": overall.get("speedup"),
        "acceptance_length": overall[_METHOD]["acceptance_length"],
        "efficiency": overall.get("efficiency"),
        "num_texts": overall.get("num_compared"),
        "num_same_text": overall.get("num_same_text"),
        "speedup_by_category": speeds,
        **_counts(run.folder / "rows.jsonl")[_METHOD],
        **_intervals(overall),
    }


def _plain_row(baseline: Values) -> Values:
    """Plain decoding, which everything else is measured against."""
    return {
        "label": "drafter=none",
        "synthetic": False,
        "tokens_per_s": baseline["tokens_per_s_end_to_end"],
        "speedup": 1.0,
        "speedup_decode": 1.0,
        "acceptance_length": baseline["acceptance_length"],
    }


def _row_of_line(line: Values) -> Values:
    """One side of a comparison."""
    names = ("label", "synthetic", "peer", "tokens_per_s", "speedup", "speedup_decode", "over_peer")
    more = ("acceptance_length", "efficiency", "outside", "num_texts", "num_same_text")
    values = {name: line.get(name) for name in (*names, *more)}
    return {**values, "speedup_by_category": line.get("categories") or {}}


def _label(run: FinishedRun, runs: Sequence[FinishedRun]) -> str:
    """The words of a run that say what its method is, without those that all runs share."""
    words = _method_words(run)
    shared = set.intersection(*(set(_method_words(each)) for each in runs))
    apart = [word for word in words if word not in shared] if len(runs) > 1 else words
    names = [f"{axis}={(run.config.get(axis) or {}).get('name')}" for axis in _LABELS[:2]]
    return " ".join(apart or names)


def _method_words(run: FinishedRun) -> list[str]:
    """Its words on the axes, then their keys."""
    words = [str(word) for word in run.manifest.get("overrides") or []]
    named = [word for word in words if re.split(r"[.=]", word)[0] in (*_LABELS, "sampling")]
    return sorted(named, key=lambda word: word.split("=")[0] not in _LABELS)


def _intervals(overall: Values) -> Values:
    intervals = overall.get("intervals") or {}
    return {
        "speedup_decode_interval": intervals.get("speedup"),
        "acceptance_length_interval": intervals.get("acceptance_length"),
    }


def _counts(path: Path) -> dict[str, Values]:
    """Of each side: rows of a pass, and tokens a pass by category."""
    sums: dict[str, Values] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for side, turns in row["sides"].items():
            total = sums[side][row["category"]]
            for metrics in (turn["metrics"] for turn in turns):
                keys = ("num_step_tokens", "num_steps", "num_draft_rows")
                total[:] = [before + metrics[key] for before, key in zip(total, keys, strict=True)]
    counts: dict[str, Values] = defaultdict(dict)
    for side, categories in sums.items():
        steps, rows = (sum(each[place] for each in categories.values()) for place in (1, 2))
        counts[side] = {
            "rows_per_pass": rows / steps if steps else None,
            "acceptance_by_category": {
                name: each[0] / each[1] for name, each in categories.items() if each[1]
            },
        }
    return counts


def _passes(each: Values) -> Values:
    """Times of passes by rows, a list of one entry a row count."""
    moved = each["moved"]
    return {
        **{key: each[key] for key in ("target", "runtime", "context", "copy_bytes_per_s")},
        "step_ms": each["step_ms"][0],
        "rows": [
            {
                "rows": rows,
                "ms": each["forward_ms"][place],
                "bytes": None if moved is None else moved[place],
                "peers": {name: times[place] for name, times in each["peers"].items()},
            }
            for place, rows in enumerate(each["rows"])
        ],
    }
