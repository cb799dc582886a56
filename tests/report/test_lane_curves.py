"""The report of a benchmark with task.batch_sizes: where each method stops paying."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specframe.report.lane_curves import lane_curves
from tests.commands import Command


def point(label: str, lanes: int, throughput: float, ratio: float) -> dict[str, Any]:
    return {
        "label": label,
        "batch_size": lanes,
        "throughput": throughput,
        "full_throughput": throughput,
        "ms_per_token": 1e3 * lanes / throughput,
        "throughput_ratio": ratio,
        "over_best_plain": throughput / 60,
        "num_texts": 4,
        "num_same_text": 4,
    }


LANES = (1, 4, 8)
RATES = {  # tokens a second, and the same over plain decoding in as many lanes
    "none": ((20, 50, 60), (1, 1, 1)),
    "good": ((30, 55, 48), (1.5, 1.1, 0.8)),
    "poor": ((10, 20, 27), (0.5, 0.4, 0.45)),
    "best": ((40, 75, 72), (2, 1.5, 1.2)),
}
POINTS = [
    point(label, *each)
    for label, rates in RATES.items()
    for each in zip(LANES, *rates, strict=True)
]


def run(points: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(name="a", summary={"batches": points} if points else {})


def test_it_says_where_each_method_stops_paying() -> None:
    (curves,) = lane_curves([run([]), run(POINTS)])
    assert curves.sentences == [
        "Plain decoding is fastest with 8 lanes: 60.0 tokens/s.",
        "good pays up to 4 lanes; with 8 lanes it has 0.80 times the tokens of plain decoding.",
        "poor pays at no number of lanes that was measured; with 4 lanes it has 0.40 times the "
        "tokens of plain decoding.",
        "best pays up to 8 lanes, the most that were measured.",
    ]
    assert [row[0].text for row in curves.table.rows][:4] == ["none", "none", "none", "good"]
    assert all(svg.startswith("<svg") for svg in curves.pictures.values())
    assert lane_curves([run([])]) == []


def test_a_page_shows_the_curve(command: Command, tmp_path: Path) -> None:
    words = ["target=toy", "drafter=ngram", "tree=chain", "max_new_tokens=8", "task.warmup=0"]
    folder = f"hydra.run.dir={tmp_path / 'runs/a'}"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps({'prompt': one})}\n" for one in ("abc", "ba")))
    asked = f"prompts={prompts}"
    done = command(*words, asked, "task=benchmark", "task.batch_sizes=[1,2]", folder)
    assert done.code == 0, done.err
    report = f"hydra.run.dir={tmp_path / 'report'}"
    assert command("task=report", f"task.runs=[{tmp_path / 'runs'}]", report).code == 0
    page = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert "<h2>Several answers at once</h2>" in page
    assert "Plain decoding is fastest with" in page
