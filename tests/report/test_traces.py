"""Traces: kept whole, cut where they are too long, refused where they are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specframe.errors import ConfigError
from specframe.report.traces import TraceReader, script_json
from tests.report.folders import NASTY, trace


def test_a_trace_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace(path, answers=2, steps=5, nodes=9)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:-1]]
    held = TraceReader(max_steps=100).read(path).as_dict("run")
    assert [len(one["steps"]) for one in held["answers"]] == [5, 5]
    assert [one["reason"] for one in held["answers"]] == ["length", "length"]
    strings = held["strings"]
    steps = [line for line in lines if line["kind"] == "step"]
    for line, step in zip(steps, (s for a in held["answers"] for s in a["steps"]), strict=True):
        assert [strings[one] for one in step["t"]] == line["texts"]
        assert [strings[one] for one in step["e"]] == line["emitted_texts"]
        assert [None if one < 0 else strings[one] for one in step["w"]] == line["why"]
        assert (step["p"], step["a"], step["k"]) == (
            line["parents"],
            line["path"],
            line["num_accepted"],
        )
        assert step["m"] == [10.0, 30.0, 1.0, 0.5, 0.5]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    trace(tmp_path / "trace.jsonl", answers=2, steps=5, nodes=3)
    reader = TraceReader(max_steps=7).read(tmp_path / "trace.jsonl")
    assert (reader.num_steps, reader.num_left_out) == (7, 3)
    assert [len(one["steps"]) for one in reader.as_dict("run")["answers"]] == [5, 2]


def test_a_killed_run_has_what_it_had(tmp_path: Path) -> None:
    trace(tmp_path / "trace.jsonl", answers=1, steps=4, nodes=3, end=False)
    (answer,) = TraceReader(max_steps=9).read(tmp_path / "trace.jsonl").as_dict("run")["answers"]
    assert (len(answer["steps"]), answer["reason"]) == (4, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"texts": []}, "texts has 0 entries"),
        ({"parents": [-1, 1, 0]}, "a parent stands after its child"),
        ({"ms": None}, "not a line of trace=steps"),
        ({"answer": 7}, "not a line of trace=steps"),
    ],
)
def test_what_is_no_step_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace(path, answers=1, steps=1, nodes=3, seed=1)
    lines = path.read_text(encoding="utf-8").splitlines()
    step = json.loads(lines[1])
    assert len(step["parents"]) == 3
    path.write_text(f"{lines[0]}\n{json.dumps(step | change)}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"trace\.jsonl:2: .*{said}"):
        TraceReader(max_steps=9).read(path)


def test_no_text_ends_the_script() -> None:
    held = script_json({"text": f"{NASTY}<!--\u2028&"})
    assert not set("<>&\u2028") & set(held)
    assert json.loads(held)["text"] == f"{NASTY}<!--\u2028&"
