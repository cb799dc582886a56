"""The tables of a run's folder: rows of plain values, by the task that left them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from specframe.measure.bootstrap import Bootstrap
from specframe.report.groups import group_runs
from specframe.report.runs import find
from specframe.session.row_table import RowTable
from specframe.sweep.point import RESULTS

Numbers = dict[str, Any]
_KEYS = ("num_prompts", "acceptance_length", "tokens_per_s", "speedup", "efficiency")
_CERTIFICATE = "certificate.json"


def numbers_of(folder: Path) -> Numbers:
    """The content of the JSON files with a run's numbers; {} where there is none."""
    found: Numbers = {}
    for name in (*RESULTS, _CERTIFICATE):
        with suppress(FileNotFoundError):
            found |= json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def answers_table(folder: Path) -> dict[str, RowTable]:
    """One row an answer of task=generate."""
    lines = (folder / "generations.jsonl").read_text(encoding="utf-8").splitlines()
    rows = []
    for line in map(json.loads, lines):
        metrics = line.pop("metrics", {})
        rows.append(line | {key: metrics[key] for key in _KEYS if key in metrics})
    return {"answers": RowTable(rows)}


def benchmark_tables(numbers: Numbers) -> dict[str, RowTable]:
    """`sides` (a row a method, where several were compared), `overall` and `categories`."""
    sides = (numbers.get("comparison") or {}).get("sides") or []
    categories = numbers.get("categories") or {}
    tables = {
        "sides": [_plain(side) for side in sides],
        "overall": [_overall(numbers.get("overall") or {})],
        "categories": [{"category": name} | _overall(own) for name, own in categories.items()],
    }
    return {name: RowTable(rows) for name, rows in tables.items() if rows}


def certificate_table(numbers: Numbers) -> dict[str, RowTable]:
    """One row a check: whether it holds, what it found, whether it noticed a broken component."""
    keys = ("name", "status", "finding", "control", "caught")
    checks = numbers.get("checks", [])
    return {"checks": RowTable([{key: check.get(key) for key in keys} for check in checks])}


def report_table(folders: Sequence[Path], *, bootstrap: Bootstrap) -> dict[str, RowTable]:
    """One row a configuration, the fastest first."""
    groups = group_runs(find(folders, bootstrap=bootstrap).runs, bootstrap=bootstrap)
    groups.sort(key=lambda group: -(group.speed or 0.0))
    rows = []
    for group in groups:
        row: dict[str, Any] = {"configuration": group.label}
        row |= {key: getattr(group.numbers, key) for key in _KEYS}
        rows.append(row | _ends("speedup", group.numbers.speedup_ends))
    return {"configurations": RowTable(rows)}


def _overall(own: Mapping[str, Any]) -> dict[str, Any]:
    """The key numbers of a method, with the interval of its speedup."""
    content = {**own, **(own.get("method") or {})}
    found = {key: content.get(key) for key in _KEYS}
    return found | _ends("speedup", (own.get("intervals") or {}).get("speedup"))


def _ends(name: str, ends: Sequence[float] | None) -> dict[str, float | None]:
    low, high = ends or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values that fit a cell."""
    return {key: value for key, value in row.items() if not isinstance(value, (dict, list))}
