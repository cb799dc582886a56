"""The numbers that a run leaves in its folder, by dotted name, as the sweep's table shows them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from specframe.sweep.point import RESULTS, flat

KEY_METRICS = ("acceptance_length", "tokens_per_s", "speedup")  # shown where they exist
_METHOD = "method."  # prefix of a benchmark's numbers; dropped, so that they match task=generate's
Row = dict[str, Any]


def numbers_in(directory: Path) -> Row:
    """Every number in a run's folder; {} where its task leaves none.

    Of a benchmark these are the overall numbers and the key metrics of each category.
    """
    numbers: Row = {}
    for name in RESULTS:
        with suppress(OSError, ValueError):  # no such file, or it is not whole
            content = json.loads((directory / name).read_text(encoding="utf-8"))
            numbers |= _benchmark(content) if "categories" in content else _single(content)
    return numbers


def _benchmark(content: Row) -> Row:
    overall = dict(_spread(content["overall"] or {}))
    numbers = {key.removeprefix(_METHOD): value for key, value in overall.items()}
    for category, metrics in content["categories"].items():
        own = {key.removeprefix(_METHOD): value for key, value in _spread(metrics).items()}
        numbers |= {f"category.{category}.{key}": own[key] for key in KEY_METRICS if key in own}
    rest = {key: content.get(key) for key in ("num_errors", "peak_memory_bytes")}
    return numbers | {key: value for key, value in rest.items() if value is not None}


def _single(content: Row) -> Row:
    """A replay has one row for each budget; several of them have a table of their own."""
    if "recorded" not in content:
        return dict(_spread(content))
    return dict(_spread(content["rows"][0])) if len(content["rows"]) == 1 else {}


def _spread(numbers: Row, above: str = "") -> Row:
    """Values under dotted names: lists of records by depth, ends of an interval as low and high."""
    spread: Row = {}
    for key, value in flat(numbers):
        name = f"{above}{key}"
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                rest = {k: v for k, v in item.items() if k != "depth"}
                spread |= _spread(rest, f"{name}.{item.get('depth', index)}.")
        elif isinstance(value, list) and "intervals." in name:
            spread |= {f"{name}.{end}": x for end, x in zip(("low", "high"), value, strict=False)}
        else:
            spread[name] = value
    return spread
