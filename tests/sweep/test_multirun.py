"""Points of a sweep: their order, what tells them apart, their records, and their one table."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pyarrow import parquet

from specframe.errors import ConfigError, IncompatibleComponents, NoHead
from specframe.sweep.multirun import place_of, point_ended, sweeping
from specframe.sweep.order import by_weights, points_by_weights
from specframe.sweep.point import (
    FAILED,
    OK,
    SKIPPED,
    PlannedPoint,
    PointRecord,
    config_hash,
    points_of,
)
from specframe.sweep.point_numbers import numbers_in
from specframe.sweep.resume import resume_command
from specframe.sweep.run_point import Sweeper, check_direction, run_point
from specframe.sweep.table import best, rows_of, summary, write

BASIC = Sweeper(optimises=False, objective="acceptance_length")
OPTUNA = Sweeper(optimises=True, objective="speedup")


def place(folder: Path, number: int = 0, **config: Any) -> PlannedPoint:
    directory = folder / f"p{number}"
    directory.mkdir(parents=True, exist_ok=True)
    values = {"seed": number, "tree": {"name": "chain", "depth": 2}} | config
    return PlannedPoint(
        directory=directory,
        number=number,
        command="this",
        config_hash=config_hash(OmegaConf.create(values)),
        overrides=[f"seed={number}"],
        choices={"tree": "chain"},
        config=values,
    )


def leaves(folder: Path, number: int, found: dict[str, Any], name: str) -> Callable[[], None]:
    def work() -> None:
        (folder / f"p{number}" / name).write_text(json.dumps(found))

    return work


def raises(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_points_of_one_target_then_of_one_drafter_follow_each_other() -> None:
    points = [
        [f"seed={seed}", f"drafter={drafter}", f"target={target}", f"tree.depth={depth}"]
        for seed in (1, 2)
        for drafter in "xy"
        for target in "ab"
        for depth in (3, 4)
    ]
    made = by_weights(points)
    assert sorted(made) == sorted(points)
    pairs = [(point[2], point[1]) for point in made]
    changes = [pair for before, pair in zip([None, *pairs], pairs, strict=False) if pair != before]
    assert changes == [
        ("target=a", "drafter=x"),
        ("target=a", "drafter=y"),
        ("target=b", "drafter=x"),
        ("target=b", "drafter=y"),
    ]
    # Where nothing that is loaded changes, the user's order stays.
    assert by_weights(points[:2] + points[8:10]) == points[:2] + points[8:10]
    keys = [["drafter.path=1"], ["target.path=1"], ["drafter.path=2"], ["drafter.path=1"]]
    assert by_weights(keys) == [keys[0], keys[3], keys[2], keys[1]]


def test_a_hash_stands_for_the_configuration_and_nothing_else() -> None:
    first = OmegaConf.create({"seed": 1, "tree": {"depth": "${seed}"}, "objective": "speedup"})
    same = {"objective": "x", "tree": {"depth": 1}, "seed": 1, "hydra": {"job": {"num": 7}}}
    assert config_hash(first) == config_hash(OmegaConf.create(same))
    assert len(config_hash(first)) == 12
    others = ({"seed": 2}, {"seed": 1}, {"seed": 1, "tree": {"depth": 1.5}})
    hashes = {config_hash(OmegaConf.create(other)) for other in others}
    assert len(hashes | {config_hash(first)}) == 4
    # What names a run does not tell configurations apart, what cannot be resolved stays as it is.
    for text in ("${now:%S}", "${hydra:job.num}", "${nowhere}"):
        held = [config_hash(OmegaConf.create({"path": text, "seed": seed})) for seed in (1, 1, 2)]
        assert held[0] == held[1] != held[2]


def test_a_point_is_done_once(tmp_path: Path) -> None:
    here = place(tmp_path)
    run_point(leaves(tmp_path, 0, {"acceptance_length": 2.0}, "metrics.json"), here, BASIC)
    never = raises(AssertionError("it is finished"))
    run_point(never, replace(here, command="later"), BASIC)
    held = PointRecord.read(here.directory)
    assert held is not None
    assert (held.status, held.reused, held.command) == (OK, True, "later")
    (here.directory / "metrics.json").unlink()
    run_point(raises(RuntimeError("boom")), here, BASIC)
    after = PointRecord.read(here.directory)
    assert after is not None
    assert (after.status, after.reason) == (FAILED, "RuntimeError: boom")
    assert "boom" in (here.directory / "traceback.txt").read_text()
    run_point(leaves(tmp_path, 0, {"acceptance_length": 3.0}, "metrics.json"), here, BASIC)
    assert not (here.directory / "traceback.txt").exists()
    (here.directory / "metrics.json").unlink()
    ran = []
    run_point(lambda: ran.append(1), here, BASIC)
    assert ran, "a point without its numbers is not finished"


def test_a_point_whose_folder_is_anothers_fails_and_leaves_it(tmp_path: Path) -> None:
    here = place(tmp_path)
    run_point(leaves(tmp_path, 0, {"acceptance_length": 2.0}, "metrics.json"), here, BASIC)
    before = (here.directory / "status.json").read_bytes()
    config = {**here.config, "seed": 9}
    other = replace(here, config=config, config_hash="another", command="later", number=1)
    run_point(raises(AssertionError("the folder is taken")), other, BASIC)
    assert (here.directory / "status.json").read_bytes() == before
    (point,) = points_of(tmp_path, "later")
    assert (point.status, point.number) == (FAILED, 1)
    assert point.reason.endswith(
        ": the point in p0 has seed=0, this one has 9; give another folder, or leave "
        "hydra.sweep.subdir out"
    )
    with pytest.raises(ConfigError, match="the point in p0 has seed=0"):
        run_point(raises(AssertionError()), other, OPTUNA)


def test_a_full_disk_is_a_sentence_and_no_traceback(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device", "out.bin")
    run_point(raises(full), place(tmp_path), BASIC)
    (point,) = points_of(tmp_path, "this")
    assert (point.status, point.reason) == (
        FAILED,
        "out.bin: no space is left on the device; free some, or give another place",
    )
    assert not (Path(point.directory) / "traceback.txt").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"status": "ok"}'])
def test_half_a_record_is_none(tmp_path: Path, content: str) -> None:
    here = place(tmp_path)
    (here.directory / "status.json").write_text(content)
    assert PointRecord.read(here.directory) is None
    assert points_of(tmp_path, "this") == []
    run_point(lambda: None, here, BASIC)
    assert [point.status for point in points_of(tmp_path, "this")] == [OK]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (IncompatibleComponents("no"), SKIPPED),
        (NoHead("no"), SKIPPED),
        (ConfigError("no"), FAILED),
        (RuntimeError("no"), FAILED),
        (SystemExit(1), FAILED),
        (SystemExit(0), OK),
    ],
)
def test_one_that_optimises_is_told_of_failures(
    tmp_path: Path, error: BaseException, status: str
) -> None:
    here = place(tmp_path)
    assert run_point(raises(error), here, BASIC) is None
    if status == OK:
        return
    with pytest.raises((ValueError, RuntimeError), match=r"no|exit code 1"):
        run_point(raises(error), here, OPTUNA)
    (point,) = points_of(tmp_path, "this")
    assert point.status == status


def test_an_interrupt_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_point(raises(KeyboardInterrupt()), place(tmp_path), BASIC)
    assert points_of(tmp_path, "this") == []


@pytest.mark.parametrize("value", [None, float("nan"), "fast"])
def test_an_objective_that_is_no_number_is_refused(tmp_path: Path, value: Any) -> None:
    numbers = {"acceptance_length": 2.0, "speedup": value}
    work = leaves(tmp_path, 0, numbers, "metrics.json")
    with pytest.raises(
        ConfigError, match=r"objective=speedup: .*it has .*acceptance_length.*bench"
    ):
        run_point(work, place(tmp_path), OPTUNA)
    other = Sweeper(optimises=True, objective="acceptance_length")
    assert run_point(raises(AssertionError()), place(tmp_path), other) == 2.0


def test_the_worst_is_not_looked_for() -> None:
    check_direction(OmegaConf.create({"direction": "maximize"}), "speedup")
    check_direction(OmegaConf.create({"params": None}), "speedup")
    with pytest.raises(ConfigError, match="direction=minimize: objective=speedup is better when"):
        check_direction(OmegaConf.create({"direction": "minimize"}), "speedup")


def test_the_command_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["/x/specframe/__main__.py", "-m", "seed=1,2", "hydra.sweep.dir=old", "prompt=a b"]
    told = "go on with: python -m specframe -m seed=1,2 'prompt=a b' hydra.sweep.dir=out/a"
    assert resume_command(words, tmp_path / "out" / "a") == told
    assert (
        resume_command(["/bin/specframe"], tmp_path / "a")
        == "go on with: specframe hydra.sweep.dir=a"
    )
    assert resume_command(words, None) == ""


def swept(folder: Path) -> list[PointRecord]:
    """Three points: one generated, one benchmarked, one that failed."""
    generated = {"acceptance_length": 2, "tokens_per_s": 30.5, "num_tokens": 64, "synthetic": False}
    depths = [{"depth": 1, "num_accepted": 3}, {"depth": 2, "num_accepted": 1}]
    one = place(folder, 0)
    run_point(
        leaves(folder, 0, generated | {"acceptance_by_depth": depths}, "metrics.json"), one, BASIC
    )
    overall = {
        "num_prompts": 2,
        "method": {"acceptance_length": 2.5, "split": None},
        "baseline": {"tokens_per_s": 10.0},
        "speedup": 1.25,
        "intervals": {"speedup": [1.0, 1.5], "acceptance_length": None},
    }
    found = {"overall": overall, "categories": {"qa": overall}, "num_errors": 0}
    two = place(folder, 1, tree={"name": "chain", "depth": 4, "paths": [[0], [1]]})
    run_point(leaves(folder, 1, found, "metrics.json"), two, BASIC)
    run_point(raises(RuntimeError("out of\nmemory")), place(folder, 2, prompt="a, b"), BASIC)
    return points_of(folder, "this")


def test_a_row_a_point(tmp_path: Path) -> None:
    files = write(swept(tmp_path), tmp_path)
    assert [file.name for file in files] == ["sweep.csv", "sweep.parquet"]
    with files[0].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["ok", "ok", "failed"]
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    assert [row["tree.depth"] for row in rows] == ["2", "4", "2"]
    assert [row["tree.paths"] for row in rows] == ["", "[[0], [1]]", ""]
    assert [row["prompt"] for row in rows] == ["", "", "a, b"]
    assert "tree" not in rows[0], "what is the same everywhere is no column"
    assert [row["acceptance_length"] for row in rows] == ["2", "2.5", ""]
    assert [row["speedup"] for row in rows] == ["", "1.25", ""]
    assert rows[1]["intervals.speedup.high"] == "1.5"
    assert rows[1]["baseline.tokens_per_s"] == "10.0"
    assert rows[1]["category.qa.acceptance_length"] == "2.5"
    assert rows[0]["acceptance_by_depth.2.num_accepted"] == "1"
    assert rows[2]["reason"].startswith("RuntimeError: out of")
    table = parquet.read_table(files[1]).to_pylist()
    assert [row["acceptance_length"] for row in table] == [2.0, 2.5, None]
    assert [row["seed"] for row in table] == [0, 1, 2]
    assert table[0]["synthetic"] is False
    assert list(table[0]) == list(rows[0])
    assert [row["directory"] for row in table] == ["p0", "p1", "p2"]


def test_points_of_replays_have_their_numbers(tmp_path: Path) -> None:
    row = {"max_nodes": 4, "acceptance_length": 1.5, "interval": [1.0, 2.0]}
    for number, rows in enumerate(([row], [row, row])):
        (tmp_path / f"p{number}").mkdir()
        found = {"recorded": {"seed": 3}, "rows": rows}
        one = place(tmp_path, number, seed=number)
        run_point(leaves(tmp_path, number, found, "replay.json"), one, BASIC)
    single, several = rows_of(points_of(tmp_path, "this"))
    assert (single["acceptance_length"], single["max_nodes"]) == (1.5, 4)
    assert "acceptance_length" not in several


def test_what_a_terminal_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    points = swept(tmp_path)
    header, *lines, counts = summary(points).splitlines()
    shown = header.split()
    assert shown[:2] == ["status", "seed"]
    assert shown[-4:] == ["acceptance_length", "tokens_per_s", "speedup", "folder"]
    assert [line.split()[0] for line in lines] == ["ok", "ok", "failed"]
    assert "2.50" in lines[1]
    assert "1.25" in lines[1]
    assert lines[2].endswith("RuntimeError: out of memory")
    assert counts == "2 ok, 0 skipped, 1 failed"
    assert best(points, "speedup") == (
        "highest speedup 1.250: seed=1 tree.depth=4 tree.paths=[[0], [1]] (p1)"
    )
    assert best(points[2:], "speedup") is None


def test_what_follows_from_a_choice_is_not_shown(tmp_path: Path) -> None:
    points = []
    for number, (tree, depth, seed) in enumerate(
        [("chain", 5, 1), ("chain", 5, 2), ("dynamic", 7, 1), ("dynamic", 7, 2)]
    ):
        here = place(tmp_path, number, tree={"name": tree, "depth": depth}, seed=seed)
        here = replace(here, choices={"tree": tree}, overrides=[f"tree={tree}", f"seed={seed}"])
        run_point(lambda: None, here, BASIC)
    points = points_of(tmp_path, "this")
    assert summary(points).splitlines()[0].split() == ["status", "tree", "seed", "folder"]
    assert {"tree", "tree.depth", "seed"} <= set(rows_of(points)[0])


def test_a_moved_folder_and_other_commands(tmp_path: Path) -> None:
    swept(tmp_path / "a")
    run_point(lambda: None, replace(place(tmp_path / "a", 5), command="other"), BASIC)
    (tmp_path / "a").rename(tmp_path / "b")
    points = points_of(tmp_path / "b", "this")
    assert [Path(point.directory) for point in points] == [
        tmp_path / "b" / f"p{i}" for i in range(3)
    ]
    assert numbers_in(Path(points[0].directory))["acceptance_length"] == 2


def test_a_point_says_which_of_how_many_it_is_and_what_is_left() -> None:
    assert place_of(0) == "1", "a launcher's worker knows no sweep"
    with sweeping() as sweep:
        assert place_of(2) == "3"
        sweep.num_points = 6
        assert place_of(0) == "1 of 6"
        point_ended(50.0)
        point_ended(70.0)
        assert place_of(2) == "3 of 6, about 4 min left"
        assert place_of(5) == "6 of 6, about 60 s left"


def test_hydras_sweeper_tells_the_number_of_points() -> None:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    told: list[int] = []
    overrides = OverridesParser.create().parse_overrides(["seed=1,2,3", "tree=chain,dynamic"])
    with points_by_weights(told.append):
        batches = BasicSweeper.split_arguments(overrides, 4)
    assert told == [6] and [len(batch) for batch in batches] == [4, 2]
