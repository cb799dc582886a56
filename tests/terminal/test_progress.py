"""How far a task is, where there is no terminal."""

from __future__ import annotations

import threading

import pytest

from specframe.terminal import progress
from specframe.terminal.progress import PromptProgress, StepProgress, duration, waiting


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


def test_long_steps_write_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with StepProgress("certify", total=5, done=1) as bar:
        bar.begin("greedy text")
        clock[0] += 20.0
        bar.add(1)
        assert capsys.readouterr().err == ""
        clock[0] += 20.0
        bar.begin("law by sampling")
    said = "certify: 2/5, law by sampling, about 2 min left\n"
    assert capsys.readouterr().err == said, "three more steps of 40 s; the earlier one is no pace"


def test_a_long_wait_says_for_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with waiting("loading target=toy"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    said = threading.Event()
    monkeypatch.setattr(progress.sys.stderr, "write", lambda text: said.set() or len(text))
    with waiting("loading target=toy"):
        assert said.wait(5)
