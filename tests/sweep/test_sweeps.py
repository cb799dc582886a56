"""Sweeps as a user starts them: killed and resumed, in other processes, and by Optuna."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.compose import build, run_task
from specframe.compose.loaded_models import LoadedModels
from specframe.compose.overrides import compose
from tests.commands import Command

REPOSITORY = Path(specframe.__file__).parents[1]
TOY = ("target=toy", "drafter=ngram", "tree=chain", "max_new_tokens=8", "prompt=abcab")


SWEPT = "hydra.sweep.dir=swept"


def words_of(*words: str) -> list[str]:
    return [sys.executable, "-m", "specframe", *words, *TOY, SWEPT]


def environment(home: Path) -> dict[str, str]:
    # Ray's workers would be too polite to get anything done on a machine that is busy.
    own = {"HOME": str(home), "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **own, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words_of(*words),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def records(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(file.read_text()) for file in folder.glob("swept/*/status.json")]
    return sorted(found, key=lambda record: record["number"])


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "swept" / "sweep.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_12_points_one_of_them_broken_killed_and_resumed(tmp_path: Path) -> None:
    # The prompt has five tokens: where there are three positions it cannot be answered.
    words = ("-m", "target.max_positions=3," + ",".join(map(str, range(40, 51))))
    with subprocess.Popen(
        words_of(*words),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 300
        while len(records(tmp_path)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    before = {record["config_hash"]: record for record in records(tmp_path)}
    assert 3 <= len(before) < 12
    done = [key for key, record in before.items() if record["status"] == "ok"]
    stamps = {key: (tmp_path / "swept" / key / "metrics.json").stat().st_mtime_ns for key in done}

    ended = run(tmp_path, *words)
    assert ended.returncode == 1, ended.stderr
    assert "11 ok, 0 skipped, 1 failed\n" in ended.stdout
    assert ended.stdout.count("finished before") == len(done) == len(before) - 1
    for key, stamp in stamps.items():
        assert (tmp_path / "swept" / key / "metrics.json").stat().st_mtime_ns == stamp
    table = rows(tmp_path)
    assert [row["status"] for row in table] == ["failed"] + 11 * ["ok"]
    assert [row["target.max_positions"] for row in table] == ["3", *map(str, range(40, 51))]
    assert table[0]["reason"].startswith("exit code 1: the prompt has 5 tokens")
    assert len({row["acceptance_length"] for row in table[1:]}) == 1
    assert {record["config_hash"] for record in records(tmp_path)} >= set(before)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"), marks=pytest.mark.slow),
        pytest.param(("hydra/launcher=submitit_local",), marks=pytest.mark.slow),
        pytest.param(
            (
                "hydra/launcher=ray",
                "+hydra.launcher.ray.init.num_cpus=1",
                "+hydra.launcher.ray.init.include_dashboard=false",
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["joblib", "submitit", "ray"],
)
def test_points_in_other_processes(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = run(tmp_path, "-m", "seed=1,-1", *words)
    assert ended.returncode == 1, ended.stderr
    assert "1 ok, 0 skipped, 1 failed\n" in ended.stdout
    first, second = records(tmp_path)
    assert (first["status"], second["status"]) == ("ok", "failed")
    assert "seed" in second["reason"]
    assert [row["seed"] for row in rows(tmp_path)] == ["1", "-1"]
    assert float(rows(tmp_path)[0]["acceptance_length"]) >= 1


@pytest.mark.slow
def test_points_that_share_weights_follow_each_other(tmp_path: Path, command: Command) -> None:
    words = ("tree=chain,native", "target=toy,toy_draft", "drafter=ngram,suffix")
    ended = command("-m", *words, *TOY[3:], SWEPT)
    assert ended.code == 0, ended.err
    made = [[row[key] for key in ("target", "drafter", "tree")] for row in rows(tmp_path)]
    assert made == [
        [target, drafter, tree]
        for target in ("toy", "toy_draft")
        for drafter in ("ngram", "suffix")
        for tree in ("chain", "native")
    ]
    assert [record["number"] for record in records(tmp_path)] == list(range(8))


@pytest.mark.slow
def test_optuna_maximises_and_its_study_goes_on(tmp_path: Path, command: Command) -> None:
    words = (
        "-m",
        "hydra/sweeper=maximise",
        "hydra.sweeper.n_trials=8",
        "hydra.sweeper.sampler.seed=1",
        "hydra.sweeper.study_name=toy",
        "hydra.sweeper.storage=sqlite:///study.db",
        "objective=num_accepted",
        "tree.depth=1,4",
        "accept=match,rejection",  # ngram has no law: these points are refused
    )
    ended = command(*words, *TOY, SWEPT)
    assert ended.code == 0, ended.err
    ok = [row for row in rows(tmp_path) if row["status"] == "ok"]
    assert {row["status"] for row in rows(tmp_path)} == {"ok", "skipped"}
    highest = max(float(row["num_accepted"]) for row in ok)
    assert f"highest num_accepted {highest:.3f}: " in ended.out
    found = (tmp_path / "swept" / "optimization_results.yaml").read_text()
    assert f"best_value: {highest}" in found
    count = len(records(tmp_path))
    again = command(*words, *TOY, SWEPT)
    assert again.code == 0, again.err
    assert "finished before" in again.err
    assert len(records(tmp_path)) >= count


def test_a_named_sweep_is_overridden_from_the_command_line(
    tmp_path: Path, command: Command
) -> None:
    words = ("experiment=sweep_budget", "drafter=lm", "tree=dynamic", "tree.max_nodes=4,8")
    rest = [word for word in TOY if word.split("=")[0] not in ("drafter", "tree")]
    done = command(*words, *rest, SWEPT)
    assert done.code == 0, done.err
    assert [row["tree.max_nodes"] for row in rows(tmp_path)] == ["4", "8"]
    assert done.out.splitlines()[-5].split()[:2] == ["status", "tree.max_nodes"]


def test_weights_stay_loaded_between_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = []
    LoadedModels.shared().clear()
    load = build.Plan.load

    def watched(self: build.Plan) -> Any:
        engines.append(load(self))
        return engines[-1]

    monkeypatch.setattr(build.Plan, "load", watched)
    points = [
        ["drafter=lm"],
        ["drafter=lm", "tree.depth=2"],
        ["drafter=lm", "cache=static"],
        ["drafter=suffix", "tree=native", "drafter.keep_outputs=4"],
        ["drafter=suffix", "tree=native", "drafter.keep_outputs=4"],
    ]
    texts = []
    for number, words in enumerate(points):
        folder = tmp_path / str(number)
        run_task.run(
            compose(
                ["target=toy", "prompt=abcab", "max_new_tokens=8", "task.stream=false", *words]
            ),
            output_dir=folder,
        )
        texts.append((folder / "generations.jsonl").read_text())
    assert len({id(engine.components.target) for engine in engines}) == 1
    drafters = [engine.components.drafter for engine in engines]
    assert drafters[0] is drafters[1]
    assert drafters[1] is not drafters[2], "it has a cache of another kind"
    assert drafters[3] is not drafters[4], "what one point learnt is not the next one's"
    # A drafter that is used again answers as a fresh one does.
    assert len({json.loads(text)["text"] for text in texts}) == 1
    fresh = specframe.load(["target=toy", "drafter=lm"])
    assert fresh.components.drafter not in drafters
