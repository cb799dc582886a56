"""task=chat: turns on top of the model's own answers, in a pipe and on a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.errors import ConfigError
from specframe.session.events import Event
from specframe.task.chat import Chat
from specframe.task.chat.dialogue import Dialogue, Interrupt
from specframe.terminal.answer import Display
from tests.commands import Command, job_of, may_be_interrupted

pty = pytest.importorskip("pty")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
TOY = ("target=toy", "drafter=lm", "max_new_tokens=6")


def chat(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    *,
    words: Sequence[str] = (),
    prompt: str | None = None,
) -> int:
    """Run the task with a pipe at its input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    engine = specframe.load([*TOY, *words])
    folder.mkdir(exist_ok=True)
    job = job_of(engine, folder, prompt=prompt)
    return Chat(colour="auto", show_rejected="auto").run(job)


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "generations.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def answered(*texts: str, sequence: int = 0) -> str:
    """What plain generation answers to these turns and answers (a toy has no template)."""
    return specframe.load(TOY).generate("\n\n".join(texts), sequence=sequence).text


def test_turns_stand_on_the_models_own_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(tmp_path, monkeypatch, "abc\n\n  de \n") == 0
    first, second = lines(tmp_path)
    assert first["text"] == answered("abc")
    assert second["text"] == answered("abc", first["text"], "de")
    assert (first["turn"], second["turn"], second["prompt"]) == (0, 1, "de")
    assert second["num_prompt_tokens"] == 3 + 6 + 2
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["num_prompts"], metrics["num_tokens"]) == (2, 12)
    shown = capsys.readouterr().out
    assert CONTROL.search(shown) is None
    assert f"> abc\n\n{first['text']}\n6 tokens (length)" in shown
    assert shown.index("> de") < shown.index(second["text"])


def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = "/stats\n/help\nabc\n/stats\n/reset\nde\n//fa\n/nope\n/exit\nnever\n"
    assert chat(tmp_path, monkeypatch, typed, words=["sampling.temperature=1"]) == 0
    found = lines(tmp_path)
    assert [one["prompt"] for one in found] == ["abc", "de", "/fa"]
    assert [one["turn"] for one in found] == [0, 0, 1]
    assert [one["num_prompt_tokens"] for one in found] == [3, 2, 2 + 6 + 2]
    shown = capsys.readouterr().out
    assert "no answer yet" in shown
    assert "/reset   forget the conversation" in shown
    assert "/nope: no such command; /help lists them" in shown
    assert shown.count("tokens per verify pass") == 2  # /stats, and the end
    assert "never" not in shown
    # Noise is keyed by the turn, so the same question may be answered in another way.
    again = tmp_path / "again"
    chat(again, monkeypatch, "abc\n/reset\nabc\n", words=["sampling.temperature=1"])
    assert lines(again)[0]["text"] == found[0]["text"]
    assert lines(again)[1]["text"] != found[0]["text"]


def test_an_earlier_conversation_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(tmp_path, monkeypatch, "abc\n")
    before = lines(tmp_path)
    with pytest.raises(ConfigError, match=r"hydra\.run\.dir=.* it has an earlier conversation"):
        chat(tmp_path, monkeypatch, "de\n")
    assert lines(tmp_path) == before


def test_a_turn_that_does_not_fit_is_one_line_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["target.max_positions=20"]
    typed = "abc\n" + "d" * 12 + "\nde\n"
    assert chat(tmp_path, monkeypatch, typed, words=words) == 1
    assert [one["prompt"] for one in lines(tmp_path)] == ["abc", "de"]
    assert lines(tmp_path)[1]["num_prompt_tokens"] == 3 + 6 + 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("specframe: the prompt has 21 tokens")
    assert told.endswith("; /reset forgets the conversation\n")


@pytest.mark.parametrize("wish", [True, False])
def test_the_colours_are_explained(
    wish: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\n"))
    job = job_of(specframe.load(TOY), tmp_path)
    Chat(colour="always", show_rejected=wish).run(job)
    legend = capsys.readouterr().out.splitlines()[0]
    assert "accepted" in legend and "corrected" in legend
    assert ("rejected" in legend) == wish


def test_the_first_turn_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat(tmp_path, monkeypatch, "de\n", prompt="abc", words=["chat.system=f"])
    first, second = lines(tmp_path)
    assert (first["prompt"], first["num_prompt_tokens"]) == ("abc", 1 + 3)
    assert second["text"] == answered("f", "abc", first["text"], "de")


def test_an_interrupt_between_steps_keeps_what_was_said() -> None:
    engine = specframe.load([*TOY, "max_new_tokens=60"])
    dialogue = Dialogue(engine=engine, show_rejected=False)
    out = io.StringIO()

    class Impatient(Display):
        def _write(self, text: str) -> None:
            before = len(out.getvalue())
            super()._write(text)
            if before <= 5 < len(out.getvalue()):
                signal.raise_signal(signal.SIGINT)

    held = signal.getsignal(signal.SIGINT)
    made, metrics = dialogue.ask("abc", Impatient(colour="never", out=out))
    whole = engine.generate("abc").text
    assert made.finish_reason == "interrupted"
    assert 5 < len(made.text) < 60
    assert whole.startswith(made.text)
    assert out.getvalue() == f"{made.text}\n"
    assert metrics.num_tokens == len(made.tokens) == len(made.text)
    assert dialogue.answers == [made.text]
    assert signal.getsignal(signal.SIGINT) is held
    # The next turn stands on what was said, from a clean state.
    after, _ = dialogue.ask("de", Display(colour="never", out=io.StringIO()))
    fresh = specframe.load([*TOY, "max_new_tokens=60"])
    assert after.text == fresh.generate(f"abc\n\n{made.text}\n\nde", sequence=1).text


def test_a_second_interrupt_does_not_wait() -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("key", ["prompts", "data"])
def test_turns_come_from_the_terminal_alone(key: str) -> None:
    with pytest.raises(ConfigError, match=f"leave {key} out, or use task=generate"):
        Chat(colour="auto", show_rejected="auto").check({key: "builtin"})


def words_of(folder: Path, *words: str) -> list[str]:
    own = ("task=chat", "target.max_positions=90000", f"hydra.run.dir={folder}")
    return [sys.executable, "-m", "specframe", *TOY, *own, *words]


def test_in_a_pipe(tmp_path: Path, command: Command) -> None:
    done = command(*words_of(tmp_path)[3:], typed="abc\nde\n")
    assert done.code == 0
    assert CONTROL.search(done.out + done.err) is None
    assert [one["prompt"] for one in lines(tmp_path)] == ["abc", "de"]
    for one in lines(tmp_path):
        assert f"\n{one['text']}\n" in done.out


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, words: Sequence[str]) -> None:
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
        environment.pop("NO_COLOR", None)
        self.shown, self._seen = "", 0
        child, self.descriptor = pty.fork()
        if child == 0:
            may_be_interrupted()
            os.execvpe(words[0], list(words), environment)
        self.child = child

    def wait_for(self, pattern: str, *, seconds: float = 120) -> None:
        """Read on until this is shown, after what was waited for before."""
        deadline = time.monotonic() + seconds
        while (found := re.compile(pattern).search(self.shown, self._seen)) is None:
            ready, _, _ = select.select(
                [self.descriptor], [], [], max(0.0, deadline - time.monotonic())
            )
            assert ready, self.shown
            try:
                self.shown += os.read(self.descriptor, 65536).decode(errors="replace")
            except OSError:  # Linux's word for the end of a terminal
                raise AssertionError(self.shown) from None
        self._seen = found.end()

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.descriptor, text.encode())

    def interrupt_for(self, pattern: str) -> None:
        """Press Ctrl-C until this is shown. Python's readline keeps one that comes between showing
        its prompt and waiting for keys, until the next key."""
        for _ in range(20):
            self.type("\x03")
            try:
                return self.wait_for(pattern, seconds=3)
            except AssertionError:
                continue
        raise AssertionError(self.shown)

    def end(self) -> int:
        """Its exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        os.close(self.descriptor)
        return code


@pytest.mark.slow
def test_on_a_terminal(tmp_path: Path) -> None:
    terminal = Terminal(words_of(tmp_path, "max_new_tokens=50000"))
    terminal.wait_for(r"Ctrl-D ends[^>]*> ")
    terminal.type("abcabc\n")
    terminal.wait_for(r"\x1b\[32m\w+\x1b\[0m")  # an accepted token, in green, as it comes
    terminal.type("\x03")
    terminal.wait_for(r"tokens \(interrupted\)[^>]*> ")
    terminal.interrupt_for(r"Ctrl-D or /exit ends[^>]*> ")
    terminal.type("/stats\n")
    terminal.wait_for(r"acceptance_length[^>]*> ")
    terminal.type("\x04")
    terminal.wait_for(r"acceptance_length")
    assert terminal.end() == 0
    (line,) = lines(tmp_path)
    assert (line["prompt"], line["finish_reason"]) == ("abcabc", "interrupted")
    assert "Traceback" not in terminal.shown


def test_events_of_one_step_stay_together() -> None:
    from specframe.task.chat.dialogue import _Answer

    events = [Event("first", 1, "a", 0), Event("accepted", 2, "b", 1), Event("bonus", 3, "c", 1)]
    interrupt = Interrupt()
    answer = _Answer(prompt_tokens=[])
    seen = []
    for event in answer.follow(iter(events), interrupt):
        seen.append(event.text)
        interrupt.requested = event.text == "b" or interrupt.requested
    assert seen == ["a", "b", "c"]
