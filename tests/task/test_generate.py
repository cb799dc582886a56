"""task=generate: its files, its looks on a terminal and in a pipe, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.compose import run_task
from specframe.compose.overrides import compose
from specframe.errors import ConfigError
from specframe.measure.metrics import Metrics, RunSummary
from specframe.models.tokenizer import HFTokenizer
from specframe.session.engine import Engine
from specframe.session.events import Event
from specframe.session.run_state import recorded
from specframe.target.toy import Letters
from specframe.task.generate import Generate, _time_left
from specframe.terminal.answer import Display, plain
from tests.commands import Command, job_of, may_be_interrupted
from tests.small_models import byte_tokenizer

pty = pytest.importorskip("pty")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
TOY = ("target=toy", "drafter=lm", "max_new_tokens=12")


def run(
    folder: Path,
    *,
    base: Sequence[str] = TOY,
    overrides: Sequence[str] = (),
    prompt: str | None = None,
    prompts: str | None = None,
    again: bool = False,
    **options: Any,
) -> int:
    """Run the task on a toy engine; prompts: content of a JSONL file; again: in a used folder."""
    path = None
    if not again:
        shutil.rmtree(folder / "run", ignore_errors=True)
    if prompts is not None:
        path = folder / "prompts.jsonl"
        path.write_text(prompts, encoding="utf-8")
    task = Generate(**({"stream": True, "colour": "auto", "show_rejected": "auto"} | options))
    engine = specframe.load([*base, *overrides])
    job = job_of(engine, folder / "run", prompt=prompt, prompts=path)
    with recorded(job.output_dir, engine=engine, config={}):
        return task.run(job)


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "run" / "generations.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))


def state(folder: Path) -> str:
    return json.loads((folder / "run" / "manifest.json").read_text(encoding="utf-8"))["state"]


def test_warm_answers_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = '{"turns": ["abc"]}\n' * 2
    words = ["target=toy", "drafter=suffix", "tree=native", "max_new_tokens=60"]
    run(tmp_path, prompts=prompts, base=words, overrides=["drafter.keep_outputs=4"])
    cold, warm = lines(tmp_path)
    assert (cold["warm"], warm["warm"]) == (False, True)
    assert cold["tokens"] == warm["tokens"]
    found = metrics(tmp_path)
    lengths = [found[name]["acceptance_length"] for name in ("cold", "warm")]
    assert lengths[1] == warm["metrics"]["acceptance_length"] > lengths[0]
    assert "the same over answers that began warm" in capsys.readouterr().out
    run(tmp_path, prompts=prompts, base=words)
    first, second = lines(tmp_path)
    assert first["metrics"]["num_steps"] == second["metrics"]["num_steps"]
    assert "warm" not in first | second


def test_one_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, prompt="abc") == 0
    (line,) = lines(tmp_path)
    assert list(line)[:4] == ["prompt", "text", "tokens", "finish_reason"]
    assert (line["prompt"], line["finish_reason"]) == ("abc", "length")
    assert (len(line["tokens"]), line["num_prompt_tokens"]) == (12, 3)
    assert "id" not in line
    assert state(tmp_path) == "finished"
    total = metrics(tmp_path)
    assert total["num_tokens"] == line["metrics"]["num_tokens"] == 12
    steps = line["metrics"]["num_steps"]
    assert total["acceptance_length"] == pytest.approx(11 / steps)
    shown = capsys.readouterr().out
    assert CONTROL.search(shown) is None
    assert f"> abc\n\n{line['text']}\n\ntokens" in shown
    for name in ("steps", "acceptance_length", "num_accepted", "tokens/s", "draft", "host"):
        assert name in shown


def test_the_stream_is_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, prompt="abc", stream=False)
    quiet, whole = capsys.readouterr().out, lines(tmp_path)[0]
    run(tmp_path, prompt="abc", show_rejected=True)
    assert whole["text"] not in quiet
    assert lines(tmp_path)[0]["text"] == whole["text"]
    assert f"\n{whole['text']}\n" in capsys.readouterr().out


def test_several_prompts_and_conversations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = '{"id": 7, "category": "qa", "prompt": "ab"}\n{"id": "x", "turns": ["a", "b"]}\n'
    assert run(tmp_path, prompts=prompts) == 0
    first, second, third = lines(tmp_path)
    assert (first["id"], first["category"], "turn" in first) == (7, "qa", False)
    assert [(one["id"], one["turn"], one["prompt"]) for one in (second, third)] == [
        ("x", 0, "a"),
        ("x", 1, "b"),
    ]
    # The second turn stands on the model's own first answer (a toy has no chat template).
    assert third["num_prompt_tokens"] == 1 + 12 + 1
    total = metrics(tmp_path)
    assert (total["num_prompts"], total["num_tokens"], total["num_errors"]) == (3, 36, 0)
    shown = capsys.readouterr().out
    assert re.search(r"^1/2  qa$", shown, re.MULTILINE)
    assert re.search(r"^2/2  x  about \d+ s left$", shown, re.MULTILINE)
    assert "mean over prompts" in shown


def test_an_answer_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    sampled = ["sampling.temperature=1"]
    run(tmp_path, overrides=sampled, prompts='{"prompt": "ab"}\n{"prompt": "ca"}\n')
    forwards = [one["tokens"] for one in lines(tmp_path)]
    run(tmp_path, overrides=sampled, prompts='{"prompt": "ca"}\n{"prompt": "ab"}\n')
    assert [one["tokens"] for one in lines(tmp_path)] == forwards[::-1]


def test_without_prompt_one_built_in(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    assert len(lines(tmp_path)) == 1


def test_a_prompt_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "a" * 30
    prompts = f'{{"prompt": "ab"}}\n{{"turns": ["{long}", "b"]}}\n{{"prompt": "ba"}}\n'
    assert run(tmp_path, overrides=["target.max_positions=20"], prompts=prompts) == 1
    assert [one["finish_reason"] for one in lines(tmp_path)] == ["length", "error", "length"]
    failed = lines(tmp_path)[1]
    assert (failed["prompt"], failed["text"], failed["tokens"]) == (long, "", [])
    assert "30 tokens" in failed["error"]
    assert capsys.readouterr().err.startswith("specframe: prompt 2: the prompt has 30 tokens")
    assert (metrics(tmp_path)["num_prompts"], metrics(tmp_path)["num_errors"]) == (2, 1)
    assert state(tmp_path) == "finished"


class _Failing:
    """A target's `score` that fails after so many calls."""

    def __init__(self, engine: Engine, error: BaseException, after: int) -> None:
        self.inner, self.error, self.left = engine.components.target.score, error, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize(
    ("error", "ending"),
    [(KeyboardInterrupt(), "interrupted"), (ValueError("a bug"), "failed")],
)
def test_an_end_in_the_middle_keeps_what_was_finished(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    ending: str,
) -> None:
    engine = specframe.load(TOY)
    monkeypatch.setattr(engine.components.target, "score", _Failing(engine, error, after=14))
    monkeypatch.setattr(specframe, "load", lambda overrides: engine)
    with pytest.raises(type(error)):
        run(tmp_path, prompts='{"prompt": "abc"}\n' * 9)
    kept = lines(tmp_path)
    assert 0 < len(kept) < 9
    assert metrics(tmp_path)["num_prompts"] == len(kept)
    assert state(tmp_path) == ending
    assert "written to" in capsys.readouterr().out


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that engines are asked to encode from here on."""
    seen: list[str] = []
    inner = Engine.encode

    def encode(self: Engine, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            seen.append(prompt)
        return inner(self, prompt)

    monkeypatch.setattr(Engine, "encode", encode)
    return seen


FOUR = '{"id": 1, "prompt": "abc"}\n{"turns": ["de", "f"]}\n{"id": "x", "prompt": "fa"}\n'


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    """Numbers of a run that another run of the same configuration has too."""
    ends = ("_s", "_ms", "_bytes", "_end_to_end")
    return {key: value for key, value in found.items() if not key.endswith(ends)}


@pytest.mark.parametrize("trace", ["none", "steps", "full"])
@pytest.mark.parametrize("whole", [0, 2, 4])
def test_a_run_goes_on_behind_its_last_whole_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int, trace: str
) -> None:
    words = [*TOY, f"trace={trace}", "task.stream=false"]
    for name in ("once", "cut"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.jsonl").write_text(FOUR)
        run_task.run(
            compose([*words, f"prompts={tmp_path / name}/p.jsonl"]), output_dir=tmp_path / name
        )
    cut = tmp_path / "cut"
    path = cut / "generations.jsonl"
    before = path.read_bytes().splitlines(keepends=True)
    torn = before[whole][:30] if whole < 4 else b""
    path.write_bytes(b"".join(before[:whole]) + torn)
    if trace == "steps":
        kept = (cut / "trace.jsonl").read_bytes()
    seen = counted(monkeypatch)
    run_task.run(compose([*words, f"prompts={cut}/p.jsonl"]), output_dir=cut)
    turns = ["abc", "de", f"de\n\n{json.loads(before[1])['text']}\n\nf", "fa"]
    assert seen == turns[whole:], "what is there is not decoded again"
    after = path.read_bytes().splitlines(keepends=True)
    assert after[:whole] == before[:whole]
    assert [json.loads(one)["tokens"] for one in after] == [
        json.loads(one)["tokens"] for one in before
    ]
    both = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("once", "cut")]
    assert timeless(both[1]) == timeless(both[0])
    total = sum(json.loads(one)["metrics"]["decode_s"] for one in after)
    assert both[1]["decode_s"] == pytest.approx(total)
    if trace == "steps":
        lines = [json.loads(one) for one in (cut / "trace.jsonl").read_text().splitlines()]
        assert [one["answer"] for one in lines if one["kind"] == "end"] == [0, 1, 2, 3]
        assert [one["answer"] for one in lines] == sorted(one["answer"] for one in lines)
        ends = [place for place, one in enumerate(lines) if one["kind"] == "end"]
        rest = kept.splitlines()[: ends[whole - 1] + 1] if whole else []
        assert (cut / "trace.jsonl").read_bytes().splitlines()[: len(rest)] == rest
    if trace == "full":
        answers = (cut / "answers.jsonl").read_text().splitlines()
        assert [json.loads(one)["answer"] for one in answers] == [0, 1, 2, 3]


def test_an_answer_that_its_trace_has_not_is_decoded_again(tmp_path: Path) -> None:
    words = [*TOY, "trace=steps", "task.stream=false", f"prompts={tmp_path}/p.jsonl"]
    (tmp_path / "p.jsonl").write_text(FOUR)
    run_task.run(compose(words), output_dir=tmp_path / "run")
    before, path = lines(tmp_path), tmp_path / "run" / "trace.jsonl"
    steps = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(steps[:-1]))
    run_task.run(compose(words), output_dir=tmp_path / "run")
    assert [one["metrics"] for one in lines(tmp_path)[:3]] == [one["metrics"] for one in before[:3]]
    assert lines(tmp_path)[3]["metrics"] != before[3]["metrics"], "its times are new"
    assert len(path.read_bytes().splitlines()) == len(steps)


def test_an_error_stays_an_error_when_the_run_goes_on(tmp_path: Path) -> None:
    long = "a" * 30
    prompts = f'{{"prompt": "ab"}}\n{{"turns": ["{long}", "b"]}}\n{{"prompt": "ba"}}\n'
    small = ["target.max_positions=20"]
    assert run(tmp_path, overrides=small, prompts=prompts) == 1
    before, path = lines(tmp_path), tmp_path / "run" / "generations.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert run(tmp_path, overrides=small, prompts=prompts, again=True) == 1
    assert [one["prompt"] for one in lines(tmp_path)] == [one["prompt"] for one in before]
    assert (metrics(tmp_path)["num_prompts"], metrics(tmp_path)["num_errors"]) == (2, 1)


def test_a_drafter_that_learns_is_asked_again_for_what_it_learnt(tmp_path: Path) -> None:
    prompts = '{"turns": ["abc"]}\n' * 3
    words = ["target=toy", "drafter=suffix", "tree=native", "max_new_tokens=60"]
    more = ["drafter.keep_outputs=4"]
    run(tmp_path, prompts=prompts, base=words, overrides=more)
    before, path = lines(tmp_path), tmp_path / "run" / "generations.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    run(tmp_path, prompts=prompts, base=words, overrides=more, again=True)
    assert [one["warm"] for one in lines(tmp_path)] == [False, True, True]
    steps = [[one["metrics"]["num_steps"] for one in some] for some in (before, lines(tmp_path))]
    assert steps[0] == steps[1]


def test_another_configuration_is_never_mixed_in(tmp_path: Path) -> None:
    words = [*TOY, "prompt=abc", "task.stream=false"]
    run_task.run(compose(words), output_dir=tmp_path)
    before = (tmp_path / "generations.jsonl").read_bytes()
    for more, told in (
        ("seed=1", "seed=0, this run has 1"),
        ("target.spread=3", "target.spread=2"),
    ):
        with pytest.raises(ConfigError, match=rf"its answers were made with {told}"):
            run_task.run(compose([*words, more]), output_dir=tmp_path)
    assert (tmp_path / "generations.jsonl").read_bytes() == before


def test_other_prompts_are_never_mixed_in(tmp_path: Path) -> None:
    run(tmp_path, prompts=FOUR)
    path = tmp_path / "run" / "generations.jsonl"
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"answer 2 there is of another prompt; give the old"):
        run(tmp_path, prompts=FOUR.replace("de", "da"), again=True)
    assert path.read_bytes() == before
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"generations\.jsonl:1: no answer of task=generate"):
        run(tmp_path, prompts=FOUR, again=True)


def events() -> list[Event]:
    return [
        Event("first", 1, "The", 0),
        Event("accepted", 2, " big", 1),
        Event("accepted", 3, " ca\x1b[2Jt", 1),
        Event("rejected", 4, "\nran", 1),
        Event("recovered", 5, " sat\n", 1),
        Event("accepted", 6, "on", 2),
        Event("bonus", 7, " it", 2),
    ]


def test_colours_of_the_field() -> None:
    out = io.StringIO()
    Display(colour="always", out=out).answer(iter(events()))
    assert out.getvalue() == (
        "The\x1b[32m big ca\u241b[2Jt\x1b[0m\x1b[9;31m\u21b5ran\x1b[0m\x1b[1;34m sat\x1b[0m\n"
        "\x1b[32mon\x1b[0m it\n"
    )


@pytest.mark.parametrize(("wish", "struck"), [(False, False), ("auto", True), (True, True)])
def test_struck_out_tokens_can_be_turned_off(
    wish: Any, struck: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, prompt="abc", colour="always", show_rejected=wish)
    out = capsys.readouterr().out
    legend, _, rest = out.partition("> abc")
    assert ("rejected" in legend) == struck and "accepted" in legend
    assert ("\x1b[9;31m" in rest) == struck


def test_the_last_line_says_whether_drafting_paid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, prompt="abc")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Drafting did not pay here, about 0.")
    assert "tokens a pass" in last and "ms (timed after the last answer)." in last
    run(tmp_path, prompt="abc", base=("target=toy", "drafter=none", "max_new_tokens=12"))
    assert "written to" in capsys.readouterr().out.splitlines()[-1]


def test_without_colour_only_the_text() -> None:
    out = io.StringIO()
    display = Display(colour="auto", out=out)
    display.legend(rejected=True)
    display.answer(iter(events()))
    assert out.getvalue() == "The big ca\u241b[2Jt sat\non it\n"


def test_every_step_is_out_before_the_next_is_made() -> None:
    out = io.StringIO()
    seen = []

    def watched() -> Any:
        for event in events():
            seen.append(out.getvalue())
            yield event

    Display(colour="never", out=out).answer(watched())
    assert seen[1] == "The"
    assert seen[5] == "The big ca\u241b[2Jt sat\n"


def test_nothing_steers_the_terminal() -> None:
    hostile = "".join(map(chr, [*range(32), *range(127, 160), 0x202E, 0x2066]))
    assert CONTROL.search(plain(hostile).replace("\t", "")) is None
    assert "\u202e" not in plain(hostile)
    assert plain("tab\tline\nünï 👩\u200d🚀") == "tab\tline\nünï 👩\u200d🚀"


def test_a_narrow_encoding_is_no_error() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    display = Display(colour="never", out=out)
    display.answer(iter([Event("first", 1, "é", 0)]))
    display.table(RunSummary(specframe.load(TOY).components.target.device), ["length"])
    out.flush()
    assert raw.getvalue().startswith(b"?\n")


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb"), ("FORCE_COLOR", "1")])
def test_no_colour_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]
) -> None:
    out = io.StringIO()
    # FORCE_COLOR alone must not colour a pipe: colour=always is how to ask for that.
    monkeypatch.setattr(out, "isatty", lambda: variable[0] != "FORCE_COLOR", raising=False)
    monkeypatch.setenv(*variable)
    assert not Display(colour="auto", out=out).coloured


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = RunSummary(specframe.load(TOY).components.target.device)
    assert _time_left(summary, 0, 10) == ""
    summary.add(Metrics(total_s=10.0))
    assert _time_left(summary, 1, 3) == "about 20 s left"
    assert _time_left(summary, 1, 61) == "about 10 min left"
    assert _time_left(summary, 1, 2001) == "about 5.6 h left"


def words_of(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "specframe", *TOY, f"hydra.run.dir={folder}/run", *words]


def in_terminal(words: Sequence[str]) -> str:
    """What a command shows on a pseudo-terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(words, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        shown = b""
        while chunk := _read(leader):
            shown += chunk
    os.close(leader)
    assert process.returncode == 0, shown
    return shown.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux's word for the end of a terminal
        return b""


@pytest.mark.slow
def test_on_a_terminal_and_in_a_pipe(tmp_path: Path, command: Command) -> None:
    words = words_of(tmp_path, "prompt=abcabc")
    shown = in_terminal(words)
    assert "\x1b[32maccepted\x1b[0m  \x1b[9;31mrejected" in shown
    text = lines(tmp_path)[0]["text"]
    struck = re.sub(r"\x1b\[9;31m[^\x1b]*\x1b\[0m", "", shown)
    assert f"\n{text}\n" in re.sub(r"\x1b\[[\d;]*m|\r", "", struck)
    again = command(*words[3:])
    assert (again.code, again.out) == (0, ""), again.err
    assert again.err.endswith("is complete, with this very configuration; nothing is done again\n")
    piped = command(*words[3:], f"hydra.run.dir={tmp_path}/piped")
    assert piped.code == 0
    assert CONTROL.search(piped.out + piped.err) is None
    assert f"\n{text}\n" in piped.out


@pytest.mark.slow
def test_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"prompt": "abc"}\n' * 10_000, encoding="utf-8")
    words = words_of(tmp_path, f"prompts={path}", "task.stream=false")
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=may_be_interrupted,
    ) as process:
        file = tmp_path / "run" / "generations.jsonl"
        deadline = time.monotonic() + 60
        while not (file.exists() and file.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert err.startswith(b"specframe: interrupted")
    assert b"acceptance_length" in out
    assert state(tmp_path) == "interrupted"
    assert metrics(tmp_path)["num_prompts"] == len(lines(tmp_path)) > 0


def test_a_missing_or_malformed_file_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:1: not JSON"):
        run(tmp_path, prompts="{")


def test_a_prompt_that_the_template_refuses_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = byte_tokenizer()
    inner.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    letters = Letters(8)
    template = HFTokenizer(inner)

    def encode(self: Letters, messages: Any, /, **more: Any) -> list[int]:
        return letters.encode(inner.decode(template.encode_chat(messages, **more)))

    monkeypatch.setattr(Letters, "encode_chat", encode)
    monkeypatch.setattr(Letters, "chat_template", inner.chat_template)
    user = {"role": "user", "content": "abc"}
    entries = [{"prompt": "ab"}, {"messages": [{"role": "system", "content": "x"}, user]}]
    prompts = "".join(json.dumps(entry) + "\n" for entry in [*entries, {"messages": [user]}])
    assert run(tmp_path, prompts=prompts, stream=False) == 1
    assert [line["finish_reason"] for line in lines(tmp_path)] == ["length", "error", "length"]
    reason = "the chat template refuses these messages (roles: system, user): TemplateError: System"
    assert lines(tmp_path)[1]["error"].startswith(reason)
    assert f"specframe: prompt 2: {reason}" in capsys.readouterr().err
    assert [line.get("num_prompt_tokens") for line in lines(tmp_path)] == [2, None, 3]
