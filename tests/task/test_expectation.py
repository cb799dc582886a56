"""What a paper claims: met or not, and which entries of the manifest are not the paper's."""

from __future__ import annotations

import pytest

from specframe.build import plan
from specframe.compose import compose
from specframe.errors import ConfigError
from specframe.task.expectation import Expectation, sentence

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


@pytest.mark.parametrize("held", [{}, {"acceptance_length": 2}, {**HELD, "tolerance": "some"}])
def test_both_numbers_are_needed(held: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"expects\.\w+=.*give the number"):
        Expectation.of(held)


@pytest.mark.parametrize("name", ["pld", "sps"])
def test_experiments_state_what_they_expect(name: str) -> None:
    config = plan(compose([f"experiment={name}", "target=toy"])).config
    assert Expectation.of(config["expects"]).acceptance_length > 1
    assert config["expects"]["target.name"] == "vicuna-7b"
