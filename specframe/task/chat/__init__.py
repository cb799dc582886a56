"""A conversation with the composed engine in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar, Literal, TextIO

from specframe.errors import ConfigError
from specframe.measure.metrics import Metrics, RunSummary
from specframe.records import is_warm
from specframe.session.generation import Generation
from specframe.session.manifest import write_json
from specframe.task.base import TASKS, Job, Task
from specframe.task.chat.dialogue import Dialogue
from specframe.terminal.answer import Colour, Display, one_line

_HELP = """\
/reset   forget the conversation
/stats   the numbers so far
/help    these lines
/exit    end, as does Ctrl-D
Ctrl-C ends an answer and keeps its text so far. A turn that begins with / is written with //."""
_ASK = "> "


@TASKS.register("chat")
class Chat(Task):
    """Answers what is typed, or piped in with one line a turn, and remembers the conversation.

    The turns go through the model's chat template; without one they are joined by blank lines.
    `prompt=` is the first turn, and `chat.system` is the system prompt. `colour` and
    `show_rejected` are those of task=generate. A turn that does not fit the context is reported in
    one line and left out.

    The run leaves generations.jsonl (one object a turn, as task=generate writes) and metrics.json.
    """

    repeatable: ClassVar[bool] = False  # what is typed is in no configuration
    free: ClassVar[tuple[str, ...]] = ("colour", "show_rejected")

    def __init__(self, *, colour: Colour, show_rejected: bool | Literal["auto"]) -> None:
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
        rejected = display.shows_rejected(self.show_rejected)
        dialogue = Dialogue(engine=job.engine, show_rejected=rejected)
        display.legend(rejected=rejected)
        with ChatFiles(job) as files:
            try:
                for turn in _turns(job.prompt, display):
                    if not _obey(turn, dialogue, display, files):
                        break
            finally:
                display.end_line()
                if files.reasons:
                    display.table(files.summary, files.reasons)
        # Whoever types has seen the errors; a script needs the exit code.
        return int(files.summary.num_errors > 0 and not sys.stdin.isatty())


class ChatFiles:
    """The files that a chat leaves, written turn by turn: generations.jsonl and metrics.json."""

    def __init__(self, job: Job) -> None:
        self.summary = RunSummary(job.engine.components.target.device)
        self.reasons: list[str] = []  # finish reasons, one an answer
        self._folder = job.output_dir

    def __enter__(self) -> ChatFiles:
        path = self._folder / "generations.jsonl"
        if path.is_file() and path.stat().st_size:
            raise ConfigError(
                f"hydra.run.dir={self._folder}: it has an earlier conversation, and a conversation "
                "cannot go on in another process; give another folder"
            )
        self._file: TextIO = path.open("w", encoding="utf-8", errors="backslashreplace")
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        write_json(self._folder / "metrics.json", self.summary.as_dict())

    def add(self, dialogue: Dialogue, answer: Generation, metrics: Metrics) -> None:
        """Write the last answer of the conversation."""
        self.summary.add(metrics, warm=is_warm(dialogue.engine.components.drafter))
        self.reasons.append(answer.finish_reason)
        line = {
            "prompt": dialogue.turns[-1],
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": answer.finish_reason,
            "num_prompt_tokens": len(answer.prompt_tokens),
            "turn": len(dialogue.turns) - 1,
            "metrics": metrics.as_dict(),
        }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def _turns(first: str | None, display: Display) -> Iterator[str]:
    """The user's turns, up to the end of the input."""
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
                print()  # the cursor stands behind the `> `
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
    """Read one line. typed: whether somebody types. Raises EOFError at the end of the input."""
    if typed and sys.stdout.isatty():
        return input(_ASK)
    if typed:
        sys.stderr.write(_ASK)  # standard output, which is piped, gets the conversation alone
        sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _obey(turn: str, dialogue: Dialogue, display: Display, files: ChatFiles) -> bool:
    """Answer a turn, or carry out a command. Returns False to end the chat."""
    word = turn.split()[0]
    if word in ("/exit", "/quit"):
        return False
    if turn.startswith("/") and not turn.startswith("//"):
        _command(word, dialogue, display, files)
        return True
    try:
        text = turn.removeprefix("/") if turn[:2] == "//" else turn
        answer, metrics = dialogue.ask(text, display)
    except KeyboardInterrupt:
        display.note("the turn and its answer are left out")
    except ConfigError as error:
        files.summary.num_errors += 1
        hint = "; /reset forgets the conversation" if dialogue.turns else ""
        sys.stderr.write(f"specframe: {' '.join(str(error).split())}{hint}\n")
    else:
        files.add(dialogue, answer, metrics)
        display.note(one_line(metrics, answer.finish_reason))
    return True


def _command(word: str, dialogue: Dialogue, display: Display, files: ChatFiles) -> None:
    if word == "/reset":
        dialogue.reset()
        display.note("the conversation is forgotten")
    elif word == "/stats":
        if files.reasons:
            display.table(files.summary, files.reasons)
        else:
            display.note("no answer yet")
    elif word == "/help":
        display.note(_HELP)
    else:
        display.note(f"{word}: no such command; /help lists them")
