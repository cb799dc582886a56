"""A conversation in the terminal with the composed engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, TextIO

from specframe.errors import ConfigError
from specframe.measure.metrics import Metrics, Summary
from specframe.session.engine import Generation
from specframe.session.manifest import write_json
from specframe.task.base import TASKS, Job, Task
from specframe.task.chat.talk import Talk
from specframe.terminal.answer import Colour, Display, one_line

_HELP = """\
/reset   forget the conversation
/stats   the numbers so far
/help    these lines
/exit    end, as does Ctrl-D
Ctrl-C ends an answer and keeps what was said of it. A text that begins with / is written //."""
_ASK = "> "


@TASKS.register("chat")
class Chat(Task):
    """Answers what is typed (or piped in, a line a turn) with the model's own answers before it,
    through its chat template; without one the turns are joined by blank lines.

    Files in the run's folder: generations.jsonl (an object a turn, as task=generate's) and
    metrics.json. system: what the model is told first. colour, show_rejected: as in task=generate.
    `prompt=` is the first turn. A turn that does not fit is told in one line and left out.
    """

    def __init__(
        self, *, system: str | None, colour: Colour, show_rejected: bool | Literal["auto"]
    ) -> None:
        self.system = system
        self.colour = colour
        self.show_rejected = show_rejected

    def check(self, config: dict[str, Any]) -> None:
        for key in ("prompts", "data"):
            if config.get(key) is not None:
                raise ConfigError(
                    f"task=chat takes its turns from the terminal; leave {key} out, or use "
                    "task=generate"
                )

    def run(self, job: Job) -> int:
        display = Display(colour=self.colour)
        rejected = display.coloured if self.show_rejected == "auto" else self.show_rejected
        talk = Talk(engine=job.engine, system=self.system, rejected=rejected)
        with ChatKeep(job) as keep:
            try:
                for turn in _turns(job.prompt, display):
                    if not _obey(turn, talk, display, keep):
                        break
            finally:
                display.end_line()
                if keep.reasons:
                    display.table(keep.summary, keep.reasons)
        # Somebody who types has seen it; a script is told.
        return int(keep.summary.num_errors > 0 and not sys.stdin.isatty())


class ChatKeep:
    """generations.jsonl and metrics.json of a chat, written turn by turn."""

    def __init__(self, job: Job) -> None:
        self.summary = Summary(job.engine.parts.target.device)
        self.reasons: list[str] = []
        self._folder = job.output_dir

    def __enter__(self) -> ChatKeep:
        path = self._folder / "generations.jsonl"
        self._file: TextIO = path.open("w", encoding="utf-8", errors="backslashreplace")
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        write_json(self._folder / "metrics.json", self.summary.as_dict())

    def add(self, talk: Talk, made: Generation, metrics: Metrics) -> None:
        """Keep an answer, the last one of the conversation."""
        self.summary.add(metrics, warm=talk.engine.parts.drafter.warm)
        self.reasons.append(made.finish_reason)
        line = {
            "prompt": talk.turns[-1],
            "text": made.text,
            "tokens": made.tokens,
            "finish_reason": made.finish_reason,
            "num_prompt_tokens": len(made.prompt_tokens),
            "turn": len(talk.turns) - 1,
            "metrics": metrics.as_dict(),
        }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def _turns(first: str | None, display: Display) -> Iterator[str]:
    """What the user says, to the end of the input."""
    if first is not None:
        display.prompt(first)
        yield first
    typed = sys.stdin.isatty()
    if typed:
        display.note("/help lists the commands, Ctrl-D ends")
        with suppress(ImportError):  # line editing, where there is any
            import readline  # noqa: F401
    while True:
        display.paragraph()
        try:
            line = _line(typed)
        except EOFError:
            if typed:
                print()  # the cursor stands behind the question
            return
        except KeyboardInterrupt:
            if not typed:
                raise
            print()
            display.note("Ctrl-D or /exit ends")
            continue
        if line.strip():
            if not typed:
                display.prompt(line)
            yield line.strip()


def _line(typed: bool) -> str:
    """One line of the input. Raises EOFError at its end."""
    if typed and sys.stdout.isatty():
        return input(_ASK)
    if typed:
        sys.stderr.write(_ASK)  # what goes into a pipe is the conversation
        sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _obey(turn: str, talk: Talk, display: Display, keep: ChatKeep) -> bool:
    """Answer a turn, or do what a command says; False ends the chat."""
    word = turn.split()[0]
    if word in ("/exit", "/quit"):
        return False
    if turn.startswith("/") and not turn.startswith("//"):
        _command(word, talk, display, keep)
        return True
    try:
        made, metrics = talk.ask(turn.removeprefix("/") if turn[:2] == "//" else turn, display)
    except KeyboardInterrupt:
        display.note("the answer is left out, with what it answers")
    except ConfigError as error:
        keep.summary.num_errors += 1
        hint = "; /reset forgets the conversation" if talk.turns else ""
        sys.stderr.write(f"specframe: {' '.join(str(error).split())}{hint}\n")
    else:
        keep.add(talk, made, metrics)
        display.note(one_line(metrics, made.finish_reason))
    return True


def _command(word: str, talk: Talk, display: Display, keep: ChatKeep) -> None:
    if word == "/reset":
        talk.reset()
        display.note("nothing was said")
    elif word == "/stats":
        if keep.reasons:
            display.table(keep.summary, keep.reasons)
        else:
            display.note("no answer yet")
    elif word == "/help":
        display.note(_HELP)
    else:
        display.note(f"{word}: no such command; /help lists them")
