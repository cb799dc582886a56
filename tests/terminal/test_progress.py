"""How far a task is, where there is no terminal."""

from __future__ import annotations

import pytest

from specframe.terminal import progress
from specframe.terminal.progress import PromptProgress, StepProgress, duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119.0, "119 s"), (150.0, "2 min"), (9000.0, "2.5 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_prompts_of_an_earlier_run_do_not_enter_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with PromptProgress("distill", total=10, done=4) as bar:
        bar.add_tokens(50)
        clock[0] += 31.0  # long enough for a plain line
        bar.add_prompts(2)
    assert bar.note() == "50 tokens, 1.6 tokens/s, about 62 s left"
    assert capsys.readouterr().err == f"distill: 6/10 prompts, {bar.note()}\n"


def test_steps_are_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with StepProgress("profile", total=3) as bar:
        bar.add(3)
    assert capsys.readouterr().err == ""
