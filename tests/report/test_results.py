"""The results command: what it takes from runs, what it writes, and what the READMEs hold."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from specframe.cli import main
from specframe.errors import ConfigError
from specframe.report import results
from specframe.report.readme_tables import TABLES, markdown
from specframe.report.result_file import command_of, read_result, result_of, write_result

WORDS = (
    *("task=benchmark", "target=toy", "drafter=lm", "tree=chain", "tree.depth=3"),
    *("max_new_tokens=8", "task.passes=[1,2]", "task.batch_sizes=[1,2]"),
)
MEMORY = {
    "peak_bytes": 4e6,
    "before_bytes": 1e6,
    "weights_bytes": 2e6,
    "cache_bytes": 0,
    "ratio": 2,
}
COMPARED = "drafter=ngram tree=dynamic"
PROMPTS = [("one", "abcab"), ("two", "dead"), ("two", "fade")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished benchmark of the toy target with one further side."""
    folder = tmp_path_factory.mktemp("benchmark")
    prompts = folder / "three.jsonl"
    lines = [json.dumps({"category": name, "prompt": text}) for name, text in PROMPTS]
    prompts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    more = [f'task.compare=["{COMPARED}"]', f"prompts={prompts}", f"hydra.run.dir={folder / 'run'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(results.ROOT)
        patch.setattr(sys, "argv", ["specframe", *WORDS, *more])
        patch.setattr("specframe.task.benchmark.comparison.footprint", lambda words: MEMORY)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    return folder / "run"


@pytest.fixture(scope="module")
def result(run: Path) -> dict[str, Any]:
    return result_of([run])


def as_point(run: Path, folder: Path, **changes: Any) -> Path:
    """A copy of the run as a point of a sweep: without further sides, with other overrides."""
    shutil.copytree(run, folder)
    for name, edit in (("manifest.json", changes), ("metrics.json", {"comparison": None})):
        held = json.loads((folder / name).read_text(encoding="utf-8")) | edit
        (folder / name).write_text(json.dumps(held), encoding="utf-8")
    return folder


def readme(folder: Path, text: str) -> Path:
    path = folder / "README.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_readme_says_what_its_result_files_say() -> None:
    assert results.differing() == [], "run `python -m specframe.report.results fill`"


def test_every_result_file_is_shown_by_a_readme() -> None:
    texts = [path.read_text(encoding="utf-8") for path in results.readmes()]
    shown = {match["name"] for text in texts for match in results.MARKER.finditer(text)}
    files = {path.stem for path in (results.ROOT / results.FOLDER).glob("*.json")}
    assert files <= shown, files - shown


def test_a_result_says_where_it_comes_from(run: Path, result: dict[str, Any]) -> None:
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    assert result["date"] == manifest["started"][:10]
    assert result["hardware"]["processor"] == manifest["hardware"]["cpu"]
    assert result["versions"]["torch"] == manifest["packages"]["torch"]
    (command,) = result["commands"]
    assert command.startswith("python -m specframe task=benchmark target=toy drafter=lm")
    assert "prompts=three.jsonl" in command and str(run.parent) not in command
    assert "hydra.run.dir" not in command
    assert (result["num_prompts"], result["max_new_tokens"], result["temperature"]) == (3, 8, 0.0)


@pytest.mark.parametrize(
    ("key", "value"), [("max_new_tokens", 9), ("seed", 3), ("task.rounds", 2), ("stop.eos", [1])]
)
def test_one_table_holds_only_what_can_be_compared(
    key: str, value: Any, run: Path, tmp_path: Path
) -> None:
    config = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["config"]
    *above, last = key.split(".")
    place = config
    for name in above:
        place = place[name]
    place[last] = value
    points = [as_point(run, tmp_path / "a"), as_point(run, tmp_path / "b", config=config)]
    with pytest.raises(ConfigError, match=f"{key}="):
        result_of(points)


def test_a_command_names_no_folder_of_a_machine() -> None:
    words = ["prompts=/data/set/a.jsonl", "task.compare=['drafter.path=/x/y/head tree=chain']"]
    told = command_of(["/home/me/specframe/__main__.py", *words, "drafter.path=runs/head"])
    assert "prompts=a.jsonl" in told and "drafter.path=head tree=chain" in told
    assert "drafter.path=runs/head" in told and "/x" not in told and "/data" not in told


def test_each_side_is_a_row(run: Path, result: dict[str, Any]) -> None:
    summary = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    plain, method, other = result["rows"]
    assert (plain["label"], method["label"]) == ("drafter=none", "drafter=lm tree=chain")
    assert other["label"] == COMPARED
    overall = summary["overall"]
    assert method["acceptance_length"] == overall["method"]["acceptance_length"]
    assert method["speedup_decode_interval"] == overall["intervals"]["speedup"]
    metrics = overall["method"]
    assert method["rows_per_pass"] == metrics["num_draft_rows"] / metrics["num_steps"]
    for name, numbers in summary["categories"].items():
        assert method["acceptance_by_category"][name] == numbers["method"]["acceptance_length"]
        assert method["speedup_by_category"][name] == pytest.approx(numbers["speedup"])
    assert plain["acceptance_by_category"] == {"one": 1.0, "two": 1.0}
    assert other["rows_per_pass"] > 1


def test_each_point_of_a_sweep_is_a_row_that_its_own_words_name(run: Path, tmp_path: Path) -> None:
    for number, tree in enumerate(("chain", "dynamic")):
        overrides = ["task=benchmark", "target=toy", "drafter=lm", "tree.depth=3", f"tree={tree}"]
        as_point(run, tmp_path / "sweep" / str(number), overrides=overrides)
    result = result_of([tmp_path / "sweep"])
    assert [row["label"] for row in result["rows"]] == ["tree=chain", "tree=dynamic"]
    single = result_of([tmp_path / "sweep" / "0"])
    assert [row["label"] for row in single["rows"]] == [
        "drafter=none",
        "target=toy drafter=lm tree=chain tree.depth=3",
    ]
    assert single["rows"][0]["speedup"] == 1.0
    assert single["rows"][1]["num_same_text"] == 3


def test_a_run_that_was_interrupted_is_refused(run: Path, tmp_path: Path) -> None:
    as_point(run, tmp_path / "cut", state="interrupted")
    with pytest.raises(ConfigError, match="interrupted run"):
        result_of([tmp_path / "cut"])
    with pytest.raises(ConfigError, match="no such folder"):
        result_of([tmp_path / "nothing"])


def test_tables_hold_the_numbers(result: dict[str, Any]) -> None:
    lines = markdown(result, None, "results/toy.json").splitlines()
    assert lines[0].startswith("| method | tokens/s | speed | decoding alone |")
    assert lines[2].startswith("| `drafter=none` | ")
    method = result["rows"][1]
    low, high = method["speedup_decode_interval"]
    assert f"| {method['speedup_decode']:.2f} [{low:.2f}, {high:.2f}] |" in lines[3]
    assert f"| {method['acceptance_length']:.2f} |" in lines[3]
    assert "3/3" in lines[3]
    assert "[toy.json](results/toy.json)." in " ".join(lines)
    assert all(len(line) <= 160 for line in lines)

    by_category = markdown(result, "acceptance", "toy.json").splitlines()
    assert by_category[0] == "| method | all | one | two |"
    assert f"{method['acceptance_by_category']['two']:.2f} |" in by_category[3]
    speeds = markdown(result, "categories", "toy.json").splitlines()
    assert f"| {method['speedup_by_category']['one']:.2f} |" in speeds[3]
    passes = markdown(result, "passes", "toy.json").splitlines()
    assert [line.split(" | ")[0] for line in passes[2:4]] == ["| 1", "| 2"]


def test_a_few_commands_stand_for_many(result: dict[str, Any]) -> None:
    many = {**result, "commands": [f"command {number}" for number in range(5)]}
    told = " ".join(markdown(many, "speed", "toy.json").split())
    assert "Command: `command 0`; `command 1`; and 3 more in the file." in told


def test_tables_that_a_result_cannot_fill_are_refused(result: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no table is called speeds; use one of speed"):
        markdown(result, "speeds", "toy.json")
    with pytest.raises(ConfigError, match="nothing for the table output"):
        markdown(result, "output", "toy.json")
    assert set(TABLES) >= {"speed", "acceptance", "categories", "passes"}


def test_markers_are_filled_and_a_difference_is_noticed(
    result: dict[str, Any], tmp_path: Path
) -> None:
    write_result(tmp_path / results.FOLDER / "toy.json", result)
    text = "Before.\n\n<!-- results:toy -->\nold\n<!-- end -->\n\nAfter.\n"
    top = readme(tmp_path, text)
    below = readme(tmp_path / "specframe" / "drafter", text.replace("toy", "toy acceptance"))
    readme(tmp_path / ".venv", "<!-- results:toy -->\n")  # nobody's
    assert results.differing(root=tmp_path) == [top, below]
    assert results.fill(root=tmp_path) == [top, below]
    assert results.fill(root=tmp_path) == results.differing(root=tmp_path) == []
    assert "](specframe/report/results/toy.json)" in top.read_text(encoding="utf-8")
    told = below.read_text(encoding="utf-8")
    assert "](../report/results/toy.json)" in told and told.endswith("<!-- end -->\n\nAfter.\n")
    top.write_text(top.read_text(encoding="utf-8").replace("| 1.00 |", "| 1.01 |", 1))
    assert results.differing(root=tmp_path) == [top], "a typed figure is noticed"


def test_a_marker_without_a_file_says_so(tmp_path: Path) -> None:
    text = "<!-- results:later -->\n| 3.1 |\n<!-- end -->\n"
    path = readme(tmp_path, text)
    assert results.differing(root=tmp_path) == [path], "a figure without a file is noticed"
    results.fill(root=tmp_path)
    assert results.PENDING in path.read_text(encoding="utf-8")
    assert results.pending(root=tmp_path) == ["README.md: later"]


def test_a_marker_that_is_not_closed_is_a_mistake(tmp_path: Path) -> None:
    readme(tmp_path, "<!-- results:toy -->\n| 1 |\n")
    with pytest.raises(ConfigError, match="no `<!-- end -->` line"):
        results.differing(root=tmp_path)


def test_what_a_command_prints_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = results.record("said", "seq 5; printf 'x%.0s' {1..300}", num_lines=3, root=tmp_path)
    lines = markdown(read_result(path), None, "said.json").splitlines()
    assert lines[:3] == ["```text", "4", "5"]
    assert lines[3] == "x" * 117 + "…" and lines[4] == "```"
    assert " ".join(lines[5:]).endswith("whole in [said.json](said.json).")
    assert read_result(path)["commands"] == ["seq 5; printf 'x%.0s' {1..300}"]
    assert "5" in capsys.readouterr().err
    here = results.record("here", 'echo "$PWD/a.py: warning"', num_lines=1, root=tmp_path)
    assert read_result(here)["output"] == ["./a.py: warning"]
    here.unlink()
    with pytest.raises(ConfigError, match="exit code 3; nothing is recorded"):
        results.record("bad", "exit 3", num_lines=3, root=tmp_path)
    assert [each.stem for each in path.parent.iterdir()] == ["said"]


def test_results_of_another_kind_are_listed_as_they_are(result: dict[str, Any]) -> None:
    listed = {
        **{key: result[key] for key in ("date", "commands", "hardware", "versions")},
        "kind": "table",
        "columns": ["head", "steps"],
        "rows": [["eagle", 500]],
    }
    lines = markdown(listed, None, "heads.json").splitlines()
    assert lines[:3] == ["| head | steps |", "| --- | --: |", "| eagle | 500 |"]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main(["add", str(tmp_path / "nothing"), "toy"]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert results.main(["add", str(tmp_path), "No Name"]) == 2
    assert "no name of a result file" in capsys.readouterr().err
    assert results.main(["check"]) == 0
