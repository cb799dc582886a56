"""Numbers of runs as they can be worked out by hand, killed and broken files included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specframe.errors import ConfigError
from specframe.measure.bootstrap import Bootstrap
from specframe.report.run_answers import read_answers
from specframe.report.runs import find
from tests.report.folders import benchmark, manifest

BOOTSTRAP = Bootstrap(resamples=100, confidence=0.95)


def test_a_benchmark(tmp_path: Path) -> None:
    folder = benchmark(tmp_path / "run", [(20, 10, 2.0, 4.0), (10, 5, 1.0, 1.0)])
    (run,) = find([folder], bootstrap=BOOTSTRAP).runs
    held = run.numbers
    assert held.acceptance_length == pytest.approx(30 / 15)
    assert held.tokens_per_s == pytest.approx(30 / 3)
    assert held.pass_ms == pytest.approx(3000 / 15)
    assert held.plain_ms == pytest.approx(5000 / 30)
    assert held.speedup == pytest.approx((30 / 3) / (30 / 5))
    assert held.pass_cost == pytest.approx(200 / (5000 / 30))
    assert held.speedup == pytest.approx(held.acceptance_length / held.pass_cost)
    assert held.efficiency == pytest.approx(1 / held.pass_cost)
    assert (held.rows, held.accepted) == (3, 1)
    assert held.depths == [(15, 15, 15)]
    assert run.categories["qa"].speedup == pytest.approx(2)
    assert run.categories["rag"].speedup == pytest.approx(1)


def test_the_split_leaves_prefill_out(tmp_path: Path) -> None:
    folder = benchmark(tmp_path / "run", [(20, 10, 2.0, 4.0)])
    split = {"prefill_ms": 50.0, "draft_ms": 30.0, "verify_ms": 60.0, "accept_ms": 10.0}
    summary = {"overall": {"method": {"split": {**split, "wall_ms": 151.0, "covered": 0.99}}}}
    (folder / "metrics.json").write_text(json.dumps(summary), encoding="utf-8")
    (run,) = find([folder], bootstrap=BOOTSTRAP).runs
    assert run.numbers.shares["draft"] == pytest.approx(0.3)
    assert sum(run.numbers.shares.values()) == pytest.approx(1)
    assert run.numbers.synchronised


def test_a_generate_run(tmp_path: Path) -> None:
    depth = {"num_drafted": 4, "num_opportunities": 4, "num_accepted": 3}
    metrics = {
        "num_step_tokens": 8,
        "num_steps": 4,
        "decode_s": 2.0,
        "num_draft_rows": 12,
        "num_accepted": 4,
        "acceptance_by_depth": [depth],
        "draft_ms": 500.0,
        "verify_ms": 1500.0,
    }
    line = {"prompt": "a", "metrics": metrics}
    failed = {"prompt": "b", "error": "too long"}
    text = f"{json.dumps(line)}\n{json.dumps(failed)}\n{json.dumps(line)[:30]}"
    (tmp_path / "generations.jsonl").write_text(text, encoding="utf-8")
    manifest(tmp_path)
    (run,) = find([tmp_path], bootstrap=BOOTSTRAP).runs
    assert (len(run.answers), run.num_errors) == (1, 1)
    assert run.numbers.acceptance_length == 2
    assert run.numbers.speedup is None
    assert run.numbers.shares["draft"] == pytest.approx(0.25)
    assert not run.numbers.synchronised


def test_a_sweep_is_walked_in_the_order_of_its_points(tmp_path: Path) -> None:
    for point in (10, 2, 0):
        benchmark(tmp_path / str(point), [(2, 1, 1.0, 1.0)], tree__depth=point)
    (tmp_path / "3").mkdir()
    status = {"status": "failed", "reason": "out of memory", "overrides": ["tree.depth=3"]}
    (tmp_path / "3" / "status.json").write_text(json.dumps(status), encoding="utf-8")
    found = find([tmp_path, tmp_path / "10"], bootstrap=BOOTSTRAP)
    assert [run.folder.name for run in found.runs] == ["0", "2", "10"]
    assert [(one.status, one.reason) for one in found.missing] == [("failed", "out of memory")]


def test_points_named_by_hashes_stand_in_the_sweeps_order(tmp_path: Path) -> None:
    for number, name in enumerate(("f0", "a1", "10")):
        folder = benchmark(tmp_path / name, [(2, 1, 1.0, 1.0)], tree__depth=number)
        (folder / "status.json").write_text(json.dumps({"number": number}), encoding="utf-8")
    foreign = benchmark(tmp_path / "zz", [(2, 1, 1.0, 1.0)], tree__depth=9)
    (foreign / "status.json").write_text("[1]", encoding="utf-8")
    found = find([tmp_path], bootstrap=BOOTSTRAP)
    assert [run.folder.name for run in found.runs] == ["f0", "a1", "10", "zz"]


def test_a_manifest_of_something_else_is_no_configuration(tmp_path: Path) -> None:
    benchmark(tmp_path / "run", [(2, 1, 1.0, 1.0)])
    (tmp_path / "run" / "manifest.json").write_text('{"config": 3}', encoding="utf-8")
    assert find([tmp_path], bootstrap=BOOTSTRAP).runs[0].config == {}


def test_what_is_no_run_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no answers in there.*rows\.jsonl"):
        find([tmp_path], bootstrap=BOOTSTRAP)
    with pytest.raises(ConfigError, match="no such folder"):
        find([tmp_path / "gone"], bootstrap=BOOTSTRAP)
    (tmp_path / "rows.jsonl").write_text('{"sides": {}}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: not a line"):
        read_answers(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}\nnothing\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1"):
        read_answers(tmp_path)
