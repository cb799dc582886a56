"""`objective=` names a number that some task leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specframe.compose import run_task
from specframe.compose.overrides import compose
from specframe.errors import ConfigError
from specframe.sweep.point_numbers import numbers_in

TOY = ["target=toy", "drafter=ngram", "tree=chain", "max_new_tokens=3", "prompt=abcab"]


@pytest.mark.parametrize(
    ("task", "name", "message"),
    [
        ("generate", "nonsense", "objective=nonsense: no such number; .*leave it out"),
        ("benchmark", "nonsense", "objective=nonsense: no such number"),
        ("generate", "acceptance_lenght", "did you mean 'acceptance_length'"),
        ("generate", "speedup", "speedup with task=benchmark"),
    ],
)
def test_a_number_that_no_run_leaves_is_refused_before_it_starts(
    task: str, name: str, message: str, tmp_path: Path
) -> None:
    words = [*TOY, f"task={task}", f"objective={name}"]
    with pytest.raises(ConfigError, match=message):
        run_task.run(compose(words), output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", ["generate", "benchmark"])
def test_every_number_that_a_run_leaves_may_be_named(task: str, tmp_path: Path) -> None:
    words = [*TOY, f"task={task}"]
    if task == "benchmark":
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text(json.dumps({"prompt": "abcab", "category": "c"}) + "\n")
        words = [*words[:-2], f"task={task}", f"prompts={prompts}", "task.resamples=100"]
    run_task.run(compose(words), output_dir=tmp_path / "run")
    names = {name.partition(".")[0]: name for name in numbers_in(tmp_path / "run")}
    assert len(names) > 15
    made = run_task.plan(compose(words)).bound["task"].make()
    for name in names.values():
        run_task._check_objective(name, made)
