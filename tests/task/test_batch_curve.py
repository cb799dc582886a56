"""task=benchmark with task.batch_sizes: throughput against latency, texts as they are alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from specframe.task.benchmark.batch_curve import BatchPoint, compared
from tests.commands import Command

WORDS = ["target=toy", "task=benchmark", "max_new_tokens=10", "task.warmup=0"]


def point(label: str, batch_size: int, throughput: float) -> BatchPoint:
    return BatchPoint(
        label=label,
        batch_size=batch_size,
        throughput=throughput,
        full_throughput=None,
        ms_per_token=None,
        mean_lanes=None,
        num_texts=1,
        num_same_text=1,
    )


def test_plain_decoding_at_as_many_lanes_and_at_its_best() -> None:
    points = [point("none", 1, 10), point("none", 4, 30), point("x", 1, 20), point("x", 4, 24)]
    found = {(one.label, one.batch_size): one for one in compared(points, plain="none")}
    assert found["x", 1].throughput_ratio == 2
    assert found["x", 4].throughput_ratio == pytest.approx(0.8)
    assert found["x", 1].over_best_plain == pytest.approx(2 / 3)
    assert found["none", 4].over_best_plain == 1
    assert compared(points, plain=None)[0].throughput_ratio is None


def test_a_curve_of_two_sides(command: Command, tmp_path: Path) -> None:
    words = [*WORDS, "drafter=lm", "tree=chain", "task.compare=['drafter=ngram tree=chain']"]
    folder = tmp_path / "run"
    done = command(*words, "task.batch_sizes=[1,3]", f"hydra.run.dir={folder}")
    assert done.code == 0, done.err
    points = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["batches"]
    assert len(points) == 6
    assert {one["batch_size"] for one in points} == {1, 3}
    assert len({one["label"] for one in points}) == 3
    for one in points:
        assert one["num_same_text"] == one["num_texts"] > 3
        assert one["throughput"] > 0
        assert 1 <= one["mean_lanes"] <= one["batch_size"]
    with (folder / "batches.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 6
    assert "over plain" in done.out
    assert "every text is held against the one it is alone" in done.out


def test_lanes_grow(command: Command) -> None:
    done = command(*WORDS, "task.batch_sizes=[4,2]")
    assert done.code == 2
    assert "must grow, such as [1, 2, 4, 8]" in done.err
    assert "out of range" in command(*WORDS, "task.batch_sizes=[0]").err
