"""What a paper claims: met or not, and which entries of the manifest are not the paper's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specframe.compose.build import plan
from specframe.compose.overrides import compose
from specframe.errors import ConfigError
from specframe.task.benchmark.paper import Expectation, sentence

HELD = {
    "acceptance_length": 2.3,
    "tolerance": 0.1,
    "target.name": "vicuna-7b",
    "config.max_new_tokens": 1024,
    "hardware.cuda.device": "A100",
}
MANIFEST = {
    "target": {"name": "lmsys/Vicuna-7B-v1.3"},
    "config": {"max_new_tokens": 64},
    "hardware": {"cuda": None},
}


@pytest.mark.parametrize(
    ("measured", "met"), [(2.3, True), (2.21, True), (2.41, False), (None, False)]
)
def test_met_or_not(measured: float | None, met: bool) -> None:
    judged = Expectation.of(HELD).judge(measured, MANIFEST)
    assert judged["met"] is met
    assert judged["differs"] == {
        "config.max_new_tokens": {"paper": 1024, "here": 64},
        "hardware.cuda.device": {"paper": "A100", "here": "nothing"},
    }
    said = sentence(judged)
    assert ("is met" in said) is met and "max_new_tokens: 64 instead of 1024" in said


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ("{}", r"expects\.acceptance_length"),
        ("{acceptance_length: 2}", r"expects\.tolerance"),
        ("{acceptance_length: abc, tolerance: 0.1}", r"expects\.acceptance_length=abc: expected"),
        ("{acceptance_length: 2, tolerance: some}", r"expects\.tolerance=some: expected"),
        (
            "{acceptance_length: nan, tolerance: 0.1}",
            r"expects\.acceptance_length=nan is out of range",
        ),
        ("{acceptance_length: 2, tolerance: -1}", r"expects\.tolerance=-1 is out of range"),
    ],
)
@pytest.mark.parametrize("task", ["generate", "benchmark"])
def test_both_numbers_are_needed_whatever_the_task(task: str, held: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(compose([f"task={task}", "target=toy", "drafter=none", f"expects={held}"]))


EXPERIMENTS = Path(__file__).parents[2] / "conf" / "experiment"
CLAIM = re.compile(r"acceptance length (\d\.\d\d)(?: to (\d\.\d\d))?")


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_experiments_expect_what_their_paper_claims(file: Path) -> None:
    config = plan(compose([f"experiment={file.stem}"])).config
    held = config["expects"]
    claimed = CLAIM.search(file.read_text(encoding="utf-8"))
    if held is None:
        assert claimed is None or file.stem == "sweep_budget", "say what is expected"
        return
    expected = Expectation.of(held)
    assert "target.name" in expected.manifest
    if claimed is not None:
        low, high = float(claimed[1]), float(claimed[2] or claimed[1])
        assert low <= expected.acceptance_length <= high
    # Its entries are ones that a manifest has.
    judged = expected.judge(1.0, {"config": config})
    for path, one in judged["differs"].items():
        settable = not path.startswith("config.") or path.startswith("config.data.")
        assert settable or one["here"] != "nothing", path
