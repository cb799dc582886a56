"""Every task has one rule for its folder: complete, or refused with the key that differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from specframe.task.base import TASKS
from tests.commands import Command

TOY = ("target=toy", "drafter=lm", "max_new_tokens=6")
ANSWERED = (*TOY, "prompts=p.jsonl", "task.stream=false")
TASK_WORDS: dict[str, tuple[Sequence[str], str, str]] = {
    # The words of a task; a word that makes it another run, and what differs then.
    "generate": (ANSWERED, "seed=1", "seed=0, this one has 1"),
    "benchmark": (
        (*TOY, "prompts=p.jsonl", "task.warmup=0"),
        "task.rounds=2",
        "task.rounds=1, this one has 2",
    ),
    "calibrate": ((*TOY, "prompts=p.jsonl"), "task.depth=2", "task.depth=5, this one has 2"),
    "certify": (
        (*TOY, "task.length=2", "task.tokens=2", "task.vocab_size=3"),
        "accept=rejection",
        'accept.name="match", this one has "rejection"',
    ),
    "report": (("task.runs=earlier",), "task.title=other", 'task.title=null, this one has "other"'),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder, with prompts in it."""
    (tmp_path / "p.jsonl").write_text('{"prompt": "abc"}\n{"prompt": "de"}\n')
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(name, marks=() if name in ("generate", "report") else pytest.mark.slow)
        for name in TASK_WORDS
    ],
)
def test_a_task_twice_in_one_folder(folder: Path, command: Command, task: str) -> None:
    given, other, differs = TASK_WORDS[task]
    if task == "report":
        assert command(*ANSWERED, "hydra.run.dir=earlier").code == 0
    words = (f"task={task}", *given, "hydra.run.dir=mine")
    first = command(*words)
    assert first.code == 0, first
    assert json.loads((folder / "mine" / "run.json").read_text())["complete"] is True
    before = snapshot(folder / "mine")
    again = command(*words)
    assert (again.code, again.out) == (0, "")
    assert again.err == (
        "specframe: the run in mine is complete, with this very configuration; nothing is done "
        "again\n"
    )
    refused = command(*words, other)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        f"specframe: error: hydra.run.dir=mine: the run that is there has {differs}; give the old "
        "value, or another folder\n"
    )
    if "prompts=p.jsonl" in given:
        (folder / "p.jsonl").write_text('{"prompt": "fa"}\n')
        changed = command(*words)
        assert changed.code == 2
        assert "mine: what prompts=p.jsonl names has changed since the run" in changed.err
    assert snapshot(folder / "mine") == before


def test_the_trace_of_an_earlier_run_is_not_left_under_another(
    folder: Path, command: Command
) -> None:
    assert command(*ANSWERED, "trace=steps", "hydra.run.dir=mine").code == 0
    before = snapshot(folder / "mine")
    refused = command(*ANSWERED, "hydra.run.dir=mine")
    assert (refused.code, refused.out) == (2, "")
    assert 'trace.name="steps", this one has "none"' in refused.err
    assert snapshot(folder / "mine") == before


def test_a_mistake_does_not_take_the_folder(folder: Path, command: Command) -> None:
    for wrong in ("tree.depth=0", "tree.dpeth=1", "prompts=nowhere.jsonl"):
        words = [word for word in ANSWERED if word.partition("=")[0] != wrong.partition("=")[0]]
        assert command(*words, wrong, "hydra.run.dir=mine").code == 2
        assert not (folder / "mine" / "run.json").exists()
    assert command(*ANSWERED, "hydra.run.dir=mine").code == 0


def test_options_that_are_free_or_written_are_options(repository: Path) -> None:
    for name in TASKS.names():
        task = TASKS.get(name)
        options = (repository / "conf" / "task" / f"{name}.yaml").read_text(encoding="utf-8")
        for key in (*task.free, *task.outputs):
            assert f"\n{key}:" in options, f"task={name} has no option {key}"
