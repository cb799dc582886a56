"""Every side of a comparison is a configuration of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specframe.measure.bootstrap import Bootstrap
from specframe.report.comparable import comparable_sets, ranked
from specframe.report.groups import group_runs
from specframe.report.paired import compare
from specframe.report.run_sides import with_sides
from specframe.report.runs import find
from tests.report.folders import Prompt, benchmark

BOOTSTRAP = Bootstrap(resamples=100, confidence=0.95)
PROMPTS: list[Prompt] = [(20, 10, 1.0, 1.5 + i / 50) for i in range(8)]


def compared(folder: Path, sides: dict[str, float], *, peer: str = "") -> Path:
    """A benchmark whose further sides need so many times the seconds of plain decoding."""
    benchmark(folder, PROMPTS)
    path = folder / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for row in rows:
        (plain,) = row["sides"]["baseline"]
        for name, times in sides.items():
            metrics = {**plain["metrics"], "decode_s": times * plain["metrics"]["decode_s"]}
            row["sides"][name] = [{"metrics": metrics}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    names = ["baseline", "method", *sides]
    lines = [_line(name, peer=name == peer) for name in names]
    summary = {"comparison": {"sides": lines}}
    (folder / "metrics.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def _line(name: str, *, peer: bool) -> dict[str, Any]:
    own = {"num_texts": 8, "num_same_text": 6, "steps": {}}
    label = "drafter=none" if name == "baseline" else name
    return {"name": name, "label": label, "peer": peer, "exact": "baseline", **own}


def test_all_sides_are_shown_and_compared(tmp_path: Path) -> None:
    names = {"drafter=suffix tree=auto": 0.5, "tree.depth=3": 2.0, "generate()": 1.25}
    compared(tmp_path / "run", names, peer="generate()")
    listed = with_sides(find([tmp_path], bootstrap=BOOTSTRAP), bootstrap=BOOTSTRAP)
    assert len(listed.runs) == 5 and len(listed.folders) == 1
    assert listed.folders[0].numbers.speedup == pytest.approx(1.57)
    groups = ranked(group_runs(listed.runs, bootstrap=BOOTSTRAP))
    speeds = {group.label: group.numbers.speedup for group in groups}
    assert list(speeds) == [
        "suffix auto",
        "lm chain tree.depth=2",
        "none",
        "generate()",
        "lm chain tree.depth=3",
    ]
    assert list(speeds.values()) == pytest.approx([2, 1.57, 1, 0.8, 0.5])
    assert len(comparable_sets(groups)) == 1
    pairs = compare(groups, bootstrap=BOOTSTRAP)
    assert len(pairs) == 10
    best = [pair for pair in pairs if pair.slower.label == "none" and pair.faster is groups[0]]
    assert best[0].ratio == pytest.approx(2)
    assert groups[0].quality("num_same_text") == 6


def test_a_side_on_another_runtime_is_apart(tmp_path: Path) -> None:
    compared(tmp_path / "run", {"runtime=packed drafter=suffix": 0.5})
    listed = with_sides(find([tmp_path], bootstrap=BOOTSTRAP), bootstrap=BOOTSTRAP)
    sets = comparable_sets(group_runs(listed.runs, bootstrap=BOOTSTRAP))
    assert [[group.facts["runtime.name"] for group in each] for each in sets] == [
        ["eager", "eager"],
        ["packed"],
    ]
