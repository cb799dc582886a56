"""task=report from the command line's side: one file of its own, of any folder of runs."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from specframe import cli
from specframe.compose import build
from specframe.errors import ConfigError
from specframe.task.report import Report
from tests.report.folders import NASTY, Prompt, benchmark, trace
from tests.turns import rest_slow

PROMPTS: list[Prompt] = [(20, 10, 1.0 + i / 50, 1.5) for i in range(7)]


def specframe(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr("sys.argv", ["specframe", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def report(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """The page about a folder, in a new folder of its own."""
    place = f"{folder}-report"
    while Path(place).exists():
        place += "-again"
    out = f"hydra.run.dir={place}"
    assert specframe(monkeypatch, "task=report", f"task.runs={folder}", out, *words) == 0
    return Path(f"{place}/report.html").read_text(encoding="utf-8")


class _Links(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "srcset", "action") or name.endswith(":href")
        ]


def test_a_page_of_real_runs_needs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["task=benchmark", "target=toy", "drafter=lm", "data=builtin", "task.per_category=2"]
    words += ["max_new_tokens=6", "task.split=true", "sampling.temperature=1"]
    for seed, tree in (("0", "chain"), ("1", "chain"), ("0", "static")):
        out = f"hydra.run.dir={tmp_path}/runs/{tree}{seed}"
        assert specframe(monkeypatch, *words, f"tree={tree}", f"seed={seed}", out) == 0
    capsys.readouterr()

    def none(*_: Any) -> None:
        raise AssertionError("a report loads no model")

    monkeypatch.setattr(build.Plan, "load", none)
    page = report(tmp_path / "runs", monkeypatch)
    said = capsys.readouterr().out
    assert "3 runs, 2 configurations" in said
    assert "report.html" in said
    links = _Links()
    links.feed(page)
    assert all(link.startswith(("#", "data:")) for link in links.found), links.found
    assert "http" not in re.sub(r"http://www\.w3\.org/\d+/\w+|http-equiv", "", page)
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for expected in (
        "lm static",
        "2 seeds",
        "plain steps",
        "Acceptance by depth",
        "By category",
        "Pair by pair",
        "Manifests",
        "sampling.temperature",
    ):
        assert expected in text, expected
    assert 'id="trees"' not in page
    manifest = json.loads((tmp_path / "runs-report/manifest.json").read_text(encoding="utf-8"))
    assert manifest["state"] == "finished"
    assert "target" not in manifest


@pytest.mark.slow
def test_lossy_rules_have_their_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = benchmark(tmp_path / "runs/a", PROMPTS, accept={"name": "typical"})
    benchmark(tmp_path / "runs/b", PROMPTS)
    overall = {
        "num_compared": 7,
        "num_same_text": 2,
        "agreement_prefix": 0.25,
        "agreement_tokens": 0.5,
        "method": {"target_logprob": -0.75},
        "baseline": {"target_logprob": -0.5},
        "scores": {"number": {"num_judged": 4, "method": 0.25, "baseline": 0.75}},
    }
    (folder / "metrics.json").write_text(json.dumps({"overall": overall}), encoding="utf-8")
    page = report(tmp_path / "runs", monkeypatch)
    for expected in ("Speed against quality", "typical, lossy", "50.0 %", "-0.250", "plain 75 %"):
        assert expected in page, expected
    (tmp_path / "runs/a/rows.jsonl").unlink()
    assert "Speed against quality" not in report(tmp_path / "runs", monkeypatch)


def test_texts_are_never_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark(tmp_path / "runs/a", PROMPTS, tree={"name": "chain", "note": NASTY})
    benchmark(tmp_path / "runs/b", PROMPTS)
    trace(tmp_path / "runs/a/trace.jsonl", answers=1, steps=4, nodes=9)
    page = report(tmp_path / "runs", monkeypatch, f'task.title="{"<b>T</b>"}"')
    assert "<img" not in page
    assert "<b>T" not in page
    assert page.count("</script>") == 2
    assert 'id="trees"' in page


@pytest.mark.slow
def test_what_cannot_be_compared_is_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy at temperature 0 was once ranked against a random model at temperature 1."""
    benchmark(tmp_path / "runs/a", PROMPTS)
    quick: list[Prompt] = [(20, 10, 0.2 + i / 50, 1.5) for i in range(7)]
    other = {"target": {"name": "random"}, "sampling__temperature": 1.0, "max_new_tokens": 16}
    benchmark(tmp_path / "runs/b", quick, tree__depth=3, **other)
    page = report(tmp_path / "runs", monkeypatch)
    assert "times as fast" not in page and "Pair by pair" not in page
    for expected in (
        "target.name (toy against random), sampling.temperature (0.0 against 1.0), "
        "max_new_tokens (8 against 16).",
        "Group 1: target.name=toy, sampling.temperature=0.0, max_new_tokens=8",
        "Group 2: target.name=random",
    ):
        assert expected in page, expected
    assert page.count('class="sortable" data-name="configurations"') == 2
    benchmark(tmp_path / "runs/c", quick, tree__depth=3)
    page = report(tmp_path / "runs", monkeypatch)
    (line,) = re.findall("Group 1.*The fastest of 2 configurations is (.*?):", page)
    assert "tree.depth=3" in line


def test_points_without_numbers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark(tmp_path / "sweep/0", PROMPTS)
    (tmp_path / "sweep/1").mkdir()
    status = {"status": "skipped", "reason": "no law <here>", "overrides": ["accept=rejection"]}
    (tmp_path / "sweep/1/status.json").write_text(json.dumps(status), encoding="utf-8")
    page = report(tmp_path / "sweep", monkeypatch)
    assert "no law &lt;here&gt;" in page
    assert "accept=rejection" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "task.runs"),
        (["task.runs=gone"], "task.runs=gone: no such folder"),
        (["task.runs=[]"], "task.runs is empty"),
        (["task.runs=conf", "task.max_steps=-1"], "task.max_steps"),
        (["task.runs=conf"], "no answers in there"),
    ],
)
def test_mistakes(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)
    assert specframe(monkeypatch, "task=report", *words, f"hydra.run.dir={tmp_path}/out") == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("accept", rest_slow(["rejection", "match", "typical"]))
def test_the_viewer_holds_a_real_trace(
    accept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs/a"
    words = ["target=toy", "drafter=lm", "tree=static", f"accept={accept}", "trace=steps"]
    words += ["sampling.temperature=1", "max_new_tokens=20", "prompt=abc", f"hydra.run.dir={run}"]
    assert specframe(monkeypatch, *words) == 0
    page = report(tmp_path / "runs", monkeypatch)
    found = re.search(r'<script type="application/json" id="traces">(.*?)</script>', page, re.S)
    assert found is not None
    (held,) = json.loads(found[1])
    assert held["name"].startswith("1 lm static "), "a folder's name says little of a point"
    (answer,) = held["answers"]
    line = json.loads((run / "generations.jsonl").read_text(encoding="utf-8"))
    tokens = [*answer["first"], *(one for step in answer["steps"] for one in step["e"])]
    assert "".join(held["strings"][one] for one in tokens) == line["text"]
    assert len(answer["steps"]) == line["metrics"]["num_steps"]
    assert sum(step["k"] for step in answer["steps"]) == line["metrics"]["num_accepted"]
    assert answer["reason"] == line["finish_reason"]
    whys = {held["strings"][one] for step in answer["steps"] for one in step["w"] if one >= 0}
    assert "accepted" in whys
    assert whys - {"accepted", "not reached"}, "a rejected node says why"


@pytest.mark.slow
def test_no_trace_no_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark(tmp_path / "runs/a", PROMPTS)
    trace(tmp_path / "runs/a/trace.jsonl", answers=1, steps=4, nodes=9)
    assert 'id="trees"' not in report(tmp_path / "runs", monkeypatch, "task.max_steps=0")
    page = report(tmp_path / "runs", monkeypatch, "task.max_steps=3")
    assert "the trees of 1 later steps are left out" in page


def test_a_list_of_folders(tmp_path: Path) -> None:
    task = Report(
        runs=[str(tmp_path), str(tmp_path / "b")],
        output="r.html",
        title=None,
        max_steps=1,
        resamples=100,
        confidence=0.9,
    )
    with pytest.raises(ConfigError, match="b: no such folder"):
        task.check({})
