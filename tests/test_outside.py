"""The suites serve a plug-in outside a clone, without `tests/` and with nothing installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_recipes import FILES

PACKAGE = Path(__file__).resolve().parents[1] / "specframe"
# Axis -> (module of the suite, class, plug-in of plugins/README.md, its body).
SUITES = {
    "drafter": ("drafters", "DrafterContract", "again", "values = {'length': 3}"),
    "tree": ("trees", "TreeContract", "forked", "values = {'width': 2}"),
    "accept": ("rules", "RuleContract", "lenient", "values = {'k': 1}"),
    "cache": ("caches", "CacheContract", "stepwise", "values = {'step': 3}"),
    "runtime": ("runtimes", "RuntimeContract", "halves", ""),
    "target": ("targets", "TargetContract", "alphabet", "values = {'lead': 3.0}"),
    "task": ("task_runs", "TaskContract", "variety", "values = {'least': 2}"),
    "trace": ("tracers", "TraceContract", "numbers", ""),
    "data": ("suites", "SuiteContract", "letters", ""),
    "tracker": ("trackers", "TrackerContract", "diary", "values = {'file': 'mine.txt'}"),
    "train": ("recipes", "RecipeContract", "fading", "values = {'noise': 0.1}"),
}
TEST = """
from specframe.testing.{module} import {suite}

class TestIt({suite}):
    word = "{word}"
    {body}
"""
HERE = """
def test_it_is_the_one_outside() -> None:
    from specframe.plugins import bootstrap

    assert {{plugin.name: plugin.place for plugin in bootstrap().plugins}}["{word}"] == {place!r}
"""


def run(axes: list[str], folder: Path, *options: str) -> str:
    """What pytest prints of the plug-ins' own tests, in an empty folder beside the plug-ins."""
    mine, empty = folder / "mine", folder / "elsewhere"
    empty.mkdir()
    for module, suite, word, body in (SUITES[axis] for axis in axes):
        for path, content in FILES.items():
            if path.startswith(f"{word}/"):
                file = mine / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content, encoding="utf-8")
        test = TEST.format(module=module, suite=suite, word=word, body=body or "...")
        test += HERE.format(word=word, place=str((mine / word).resolve()))
        (mine / word / f"test_{word}.py").write_text(test, encoding="utf-8")
    (folder / "site").mkdir()
    (folder / "site" / "specframe").symlink_to(PACKAGE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(mine)],
        cwd=empty,
        env={
            **os.environ,
            "PYTHONPATH": str(folder / "site"),
            "SPECFRAME_PLUGINS": str(mine),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_suite_of_a_drafter_runs_outside(tmp_path: Path) -> None:
    chosen = "outside or declared or nothing_to_the_next or datasheet"
    assert "4 passed" in run(["drafter"], tmp_path, "-k", chosen)


@pytest.mark.slow
@pytest.mark.parametrize("axis", SUITES)
def test_every_suite_runs_outside(axis: str, tmp_path: Path) -> None:
    out = run([axis], tmp_path)
    assert "skipped" not in out
    assert "failed" not in out
