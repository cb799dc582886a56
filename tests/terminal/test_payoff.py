"""The sentence that says whether drafting paid."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specframe.measure.metrics import Metrics, RunSummary
from specframe.planning.cost_table import CostTable
from specframe.terminal.payoff import payoff

COSTS = CostTable(rows=(1, 2), contexts=(100, 200), pass_ms=((40.0, 41.0), (60.0, 61.0)))
PLANNED = SimpleNamespace(costs=COSTS)


def summary(*, steps: int, seconds: float, drafted: int = 9, synthetic: bool = False) -> RunSummary:
    """20 tokens in so many steps, of which the host took 0.1 s."""
    made = RunSummary(torch.device("cpu"))
    metrics = Metrics(
        num_tokens=21,
        num_step_tokens=20,
        num_steps=steps,
        num_accepted=20 - steps,
        num_drafted=drafted,
        decode_s=seconds,
        synthetic=synthetic,
    )
    metrics.phase_ms["host"] = 100.0
    made.add(metrics, warm=None)
    return made


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.6, ": a token took 25.0 ms at 2.00 tokens a pass, a step of plain decoding 50.0 ms"),
        (0.6, " 50.0 ms (by the costs of this machine)."),
        (0.6, "Drafting paid, about 2.00 times plain decoding:"),
        (1.7, "Drafting did not pay here, about 0.62 times plain decoding:"),
        (1.1, "About as fast as plain decoding:"),
    ],
)
def test_it_says_whether_drafting_paid(seconds: float, said: str) -> None:
    assert said in payoff(PLANNED, summary(steps=10, seconds=seconds), context=150)


def test_nothing_accepted_never_pays() -> None:
    """On a busy machine a plain step that is timed later may seem slower."""
    said = payoff(SimpleNamespace(), summary(steps=20, seconds=0.6), context=9, measured_ms=90.0)
    assert said.startswith("None of 9 drafted tokens was accepted, so drafting won nothing here")


def test_no_speed_is_above_the_tokens_of_a_pass() -> None:
    said = payoff(SimpleNamespace(), summary(steps=10, seconds=0.6), context=9, measured_ms=90.0)
    assert "the machine was slower when plain decoding was timed (90.0 ms a step)" in said
    assert "not known" in said


def test_without_costs_it_says_what_measures_it() -> None:
    said = payoff(SimpleNamespace(), summary(steps=10, seconds=0.6), context=150)
    assert said.startswith("It emitted 2.00 tokens a pass, 25.0 ms a token.")
    assert "was not measured" in said and "task=benchmark" in said


def test_plain_decoding_may_have_been_timed() -> None:
    made = summary(steps=10, seconds=0.6)
    said = payoff(SimpleNamespace(), made, context=150, measured_ms=20.0)
    assert said.startswith("Drafting did not pay here, about 0.80 times plain decoding: ")
    assert "a step of plain decoding 20.0 ms (timed after the last answer)." in said


def test_no_draft_is_plain_decoding() -> None:
    said = payoff(PLANNED, summary(steps=20, seconds=1.0, drafted=0), context=150)
    assert said.startswith("Nothing was drafted") and said.endswith("this is plain decoding.")


def test_nothing_to_say() -> None:
    assert payoff(SimpleNamespace(), summary(steps=20, seconds=1.0, drafted=0), context=9) == ""
    assert payoff(PLANNED, summary(steps=5, seconds=1.0, synthetic=True), context=9) == ""
    assert payoff(PLANNED, RunSummary(torch.device("cpu")), context=0) == ""
