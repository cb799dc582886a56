"""The examples of plugins/README.md are written to a folder and run; conf/README.md's compose.

A fenced block whose first line is a comment that names a file under `plugins/` is that file.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specframe.cli import main
from specframe.compose import data_sheets
from specframe.compose.axes import AXES
from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.plugins import bootstrap
from specframe.train.base import RECIPES
from tests.training.small_courses import small_target, write

ROOT = Path(__file__).resolve().parents[1]
FILE = re.compile(r"^```\w+\n# plugins/(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^python -m specframe (.*?)(?: +# .*)?$", re.MULTILINE)
TEXT = (ROOT / "plugins" / "README.md").read_text(encoding="utf-8")
FILES = dict(FILE.findall(TEXT))
COMMANDS = COMMAND.findall(TEXT)
# What each command leaves in its run's folder.
RESULTS = {"task=train": "head/config.json", "task=variety": "variety.txt"}
# A model that is trained in a moment.
SMALL = (
    *("target=hf", "target.path=model", "device=cpu", "train.precision=32-true"),
    *("train.max_steps=4", "train.batch_tokens=128", "train.dtype=float32", "task.heldout=0.25"),
    *("task.check_every=4", "train.vocabulary=90", "train.min_coverage=0.5"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the examples in its plugins/."""
    for path, content in FILES.items():
        file = tmp_path / "plugins" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    monkeypatch.undo()
    bootstrap()
    plugins = {path.partition("/")[0] for path in FILES}
    for registry in (*AXES.values(), RECIPES):
        for word in plugins & registry._entries.keys():
            del registry._entries[word]
    for name in [name for name in sys.modules if name.startswith("specframe.ext.")]:
        if name.split(".")[2] in plugins:
            del sys.modules[name]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_runs(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    if "task=train" in words:
        small_target().model.save_pretrained(folder / "model")
        write(folder / "answers.jsonl")
        words += SMALL
    monkeypatch.setattr(sys, "argv", ["specframe", *words, "hydra.run.dir=out"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    results = [RESULTS[word] for word in words if word in RESULTS] or ["generations.jsonl"]
    assert (folder / "out" / results[0]).is_file()
    if "tracker=diary" in words:
        assert (folder / "diary.txt").read_text().startswith("out ok ")
        assert (folder / "out" / "numbers.jsonl").read_text().count("\n") == 1


def test_every_example_is_run() -> None:
    found = (re.fullmatch(r"[^/]+/conf/([^/]+)/([^/]+)\.yaml", path) for path in FILES)
    words = [f"{match[1]}={match[2]}" for match in found if match]
    given = {word for command in COMMANDS for word in shlex.split(command)}
    assert set(words) <= given
    assert {word.partition("=")[0] for word in words} >= {
        *("drafter", "tree", "accept", "task", "data", "train", "trace", "tracker"),
    }


@pytest.mark.parametrize(
    "command", COMMAND.findall((ROOT / "conf" / "README.md").read_text(encoding="utf-8"))
)
def test_a_command_of_the_conf_readme_composes(command: str) -> None:
    words = [word for word in shlex.split(command) if word not in ("-m", "--cfg", "job")]
    if words[0] in data_sheets.COMMANDS:
        assert data_sheets.answer(words)
        return
    single = [re.sub(r"^([\w.]+=\w+)(,\w+)+$", r"\1", word) for word in words]
    assert plan(compose(single)).bound
