"""task=generate with batch_size: the files are those of one answer at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command

PROMPTS = [
    {"turns": ["abcab", "ba"]},
    {"turns": ["c"], "category": "short"},
    {"turns": ["", "ab"]},
    {"turns": ["bbbbcccc"], "id": "x"},
    {"turns": ["a", "b", "c"]},
]
WORDS = ["target=toy", "drafter=lm", "tree=dynamic", "stop.eos=[2]", "max_new_tokens=20"]
OF_TIME = ("metrics",)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in PROMPTS), encoding="utf-8")
    return file


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "generations.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def untimed(folder: Path) -> list[dict[str, Any]]:
    """The lines without what the clock says."""
    found = []
    for line in lines(folder):
        counts = {k: v for k, v in line.get("metrics", {}).items() if k.startswith("num_")}
        found.append({**{k: v for k, v in line.items() if k != "metrics"}, "counts": counts})
    return found


def test_files_are_those_of_one_at_a_time(command: Command, prompts: Path, tmp_path: Path) -> None:
    words = [*WORDS, f"prompts={prompts}"]
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert command(*words, f"hydra.run.dir={alone}").code == 1  # one prompt is empty
    done = command(*words, "batch_size=3", f"hydra.run.dir={together}")
    assert done.code == 1
    assert untimed(together) == untimed(alone)
    numbers = json.loads((together / "metrics.json").read_text(encoding="utf-8"))
    before = json.loads((alone / "metrics.json").read_text(encoding="utf-8"))
    for name in ("num_tokens", "num_steps", "acceptance_length", "num_errors", "num_prompts"):
        assert numbers[name] == before[name]
    assert numbers["batch_size"] == 3
    assert numbers["throughput"] == pytest.approx(numbers["num_tokens"] / numbers["wall_s"])
    assert 1 <= numbers["mean_lanes"] <= 3
    assert numbers["ms_per_token"] > 0
    assert numbers["tokens_per_s"] is None, "a lane's rate is not that of the run"
    assert "batch_size" not in before
    assert "throughput" in done.out


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_killed_run_goes_on_with_other_lanes(
    left: int, command: Command, prompts: Path, tmp_path: Path
) -> None:
    words = [*WORDS, f"prompts={prompts}", f"hydra.run.dir={tmp_path / 'run'}"]
    command(*words, "batch_size=2")
    whole = untimed(tmp_path / "run")
    file, record = tmp_path / "run/generations.jsonl", tmp_path / "run/run.json"
    kept = file.read_bytes().splitlines(keepends=True)[: left + 1]  # a heading, then answers
    file.write_bytes(b"".join(kept) + b'{"prom')
    record.write_text(
        json.dumps({**json.loads(record.read_text(encoding="utf-8")), "complete": False}),
        encoding="utf-8",
    )
    assert command(*words, "batch_size=3").code == 1
    assert untimed(tmp_path / "run") == whole


def test_what_answers_one_at_a_time_says_so(command: Command) -> None:
    for words, reason in (
        (["task=chat"], "task=chat decodes one answer at a time"),
        (["trace=steps"], "a trace records one answer at a time"),
    ):
        done = command("target=toy", "batch_size=2", *words)
        assert done.code == 2
        assert reason in done.err
    assert "batch_size=0 is out of range" in command("target=toy", "batch_size=0").err
