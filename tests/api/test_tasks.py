"""Tasks called from Python: the command line's runs, with their results as tables."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import specframe
from specframe.api import tasks
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.session.row_table import RowTable

TOY = ["target=toy", "drafter=ngram", "tree=chain", "max_new_tokens=6"]
QUICK = [*TOY, "task.rounds=1", "task.warmup=0", "task.split=false", "task.resamples=100"]
NOTEBOOK = Path(__file__).parent / "notebook.py"


def test_the_names_at_the_top_come_late() -> None:
    assert specframe.benchmark is tasks.benchmark
    assert specframe.certify is tasks.certify
    program = "import sys, specframe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tasks.generate([*TOY, "prompt=abcab"], folder=tmp_path / "run")
    assert (result.task, result.exit_code, result.folder) == ("generate", 0, tmp_path / "run")
    (row,) = result.rows
    engine = specframe.load(TOY)
    assert row["tokens"] == engine.generate("abcab").tokens
    assert row["finish_reason"] == "length"
    assert result.numbers["num_prompts"] == 1
    assert row["acceptance_length"] == result.numbers["acceptance_length"]
    assert "acceptance_length" in result.printed
    assert capsys.readouterr().out == ""
    assert (tmp_path / "run" / "manifest.json").is_file()


def test_a_benchmark_and_its_report(tmp_path: Path) -> None:
    words = [*QUICK, "prompt=abcab"]
    result = tasks.benchmark(words, folder=tmp_path / "run")
    assert list(result.tables) == ["overall", "categories"]
    (row,) = result.rows
    overall = result.numbers["overall"]
    assert row["speedup"] == overall["speedup"]
    assert row["acceptance_length"] == overall["method"]["acceptance_length"]
    assert result.to_markdown().startswith("| num_prompts | acceptance_length |")
    assert repr(result).startswith("task=benchmark, exit code 0, in ")
    assert result._repr_html_().startswith("<table>")
    page = tasks.report([tmp_path / "run"], ["task.resamples=100"], folder=tmp_path / "page")
    assert (tmp_path / "page" / "report.html").is_file()
    (line,) = page.rows
    assert line["configuration"] == "ngram chain"
    assert line["speedup"] == pytest.approx(overall["speedup"])
    wrong: tuple[list[str] | str, ...] = ([], "outputs")
    for runs in wrong:
        with pytest.raises(ConfigError, match="runs: give a list of folders"):
            tasks.report(runs)


def test_a_comparison_has_a_row_a_side(tmp_path: Path) -> None:
    words = [*QUICK, "data=builtin", "task.per_category=1", 'task.compare=["drafter=suffix"]']
    result = tasks.benchmark(words, folder=tmp_path)
    assert list(result.tables) == ["sides", "overall", "categories"]
    labels = [row["label"] for row in result.rows]
    assert labels[:2] == ["drafter=none", "drafter=ngram tree=chain"]
    assert labels[2].startswith("drafter=suffix")
    categories = result.tables["categories"]
    assert [row["category"] for row in categories] == list(result.numbers["categories"])
    assert all(row["speedup"] > 0 for row in categories)


def test_a_certificate(tmp_path: Path) -> None:
    few = ["task.texts=[abcab]", "task.tokens=4", "task.length=2", "task.draws=200"]
    result = tasks.certify([*TOY, *few], folder=tmp_path)
    assert result.exit_code == 0
    assert result.numbers["verdict"].startswith("exact: accept=match")
    assert [row["name"] for row in result.rows][:2] == ["greedy text", "rows of a pass"]
    assert {row["status"] for row in result.rows} <= {"holds", "no claim"}


def test_a_sweep(tmp_path: Path) -> None:
    words = ["target=toy", "drafter=ngram", "tree=chain,static", "seed=1,2", "max_new_tokens=5"]
    result = tasks.sweep([*words, "prompt=abcab"], task="generate", folder=tmp_path)
    assert [(row["tree"], row["seed"], row["status"]) for row in result.rows] == [
        ("chain", "1", "ok"),
        ("chain", "2", "ok"),
        ("static", "1", "ok"),
        ("static", "2", "ok"),
    ]
    first = json.loads((tmp_path / "0" / "metrics.json").read_text())
    assert result.rows[0]["acceptance_length"] == first["acceptance_length"]
    assert "drafter" not in result.rows.columns
    assert result.exit_code == 0


def test_a_sweep_goes_on_after_a_point_that_fails(tmp_path: Path) -> None:
    words = ["target=toy", "drafter=ngram", "tree=chain", "accept=rejection,match"]
    skipped = tasks.sweep([*words, "max_new_tokens=3"], task="generate", folder=tmp_path / "a")
    assert [row["status"] for row in skipped.rows] == ["skipped", "ok"]
    assert "use accept=match" in skipped.rows[0]["reason"]
    assert skipped.exit_code == 0
    words = ["target=toy", "drafter=ngram", "tree=chain", "max_new_tokens=0,3"]
    failed = tasks.sweep(words, task="generate", folder=tmp_path / "b")
    assert [row["status"] for row in failed.rows] == ["failed", "ok"]
    assert "max_new_tokens=0 is out of range" in failed.rows[0]["reason"]
    assert failed.exit_code == 1


def test_mistakes_are_the_command_lines_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drafter=ngrm: no such option"):
        tasks.benchmark(["drafter=ngrm"], folder=tmp_path)
    with pytest.raises(IncompatibleComponents, match="use accept=match"):
        tasks.benchmark([*TOY, "accept=rejection"], folder=tmp_path)
    with pytest.raises(ConfigError, match="task is given 2 times"):
        tasks.benchmark(["task=generate"], folder=tmp_path)
    with pytest.raises(ConfigError, match=r"hydra\.run\.dir=x: flags and Hydra's own keys"):
        tasks.benchmark(["hydra.run.dir=x"], folder=tmp_path)
    with pytest.raises(ConfigError, match="give a list of words"):
        tasks.benchmark("drafter=ngram", folder=tmp_path)
    with pytest.raises(ConfigError, match="tree"):
        tasks.sweep(["tree=[chain"], folder=tmp_path)


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    left = runpy.run_path(str(NOTEBOOK))
    assert isinstance(left["points"].rows, RowTable)
    assert left["answer"].log_probs is not None
    assert len(left["points"].rows) == 2
    assert left["verdict"].startswith("exact")
    assert (Path(left["page"].folder) / "report.html").is_file()
