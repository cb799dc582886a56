"""A conversation with an engine, whose answers may be ended early by Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from specframe.measure.meter import Meter
from specframe.measure.metrics import Metrics
from specframe.prompts.questions import conversation
from specframe.prompts.reader import PromptRecord
from specframe.session.engine import Engine
from specframe.session.events import Event
from specframe.session.generation import Generation
from specframe.terminal.answer import Display

INTERRUPTED = "interrupted"  # finish reason of an answer that Ctrl-C ended


@dataclass
class Dialogue:
    """A conversation so far."""

    engine: Engine
    show_rejected: bool  # whether answers show the tokens that were rejected
    turns: list[str] = field(default_factory=list)  # of the user
    answers: list[str] = field(default_factory=list)  # of the model, one for each turn
    num_answers: int = 0  # since the program started, over resets; it keys the noise

    def reset(self) -> None:
        """Forget the conversation."""
        self.turns, self.answers = [], []

    def ask(self, turn: str, display: Display) -> tuple[Generation, Metrics]:
        """Stream the answer to a turn, and add both to the conversation.

        Raises ConfigError for a turn that does not fit the context, and KeyboardInterrupt where the
        answer was interrupted before it had any text. Neither adds anything.
        """
        record = PromptRecord(turns=(*self.turns, turn))
        tokens = self.engine.encode(conversation(self.engine, record, self.answers))
        answer = _Answer(prompt_tokens=tokens)
        meter = Meter(self.engine.components.target.device)
        meter.begin()
        with Interrupt() as interrupt:
            stream = self.engine.stream(
                tokens,
                sequence=self.num_answers,
                observers=[meter],
                show_rejected=self.show_rejected,
            )
            display.answer(answer.follow(stream, interrupt))
        self.num_answers += 1
        generation = answer.generation()
        metrics = meter.end(first_tokens=len(generation.tokens[:1]))
        self.turns.append(turn)
        self.answers.append(generation.text)
        return generation, metrics


@dataclass
class _Answer:
    """An answer while it is streamed, which may end early."""

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: Generation | None = None

    def follow(self, stream: Iterator[Event], interrupt: Interrupt) -> Iterator[Event]:
        """The events, until the stream ends or the user interrupts it between two steps."""
        while True:
            try:
                event = next(stream)
            except StopIteration as end:
                self.finished = end.value
                return
            if event.kind != "rejected":
                self.tokens += [] if event.kind == "rest" else [event.token]
                self.text += event.text
            yield event
            if interrupt.requested and event.kind in ("first", "recovered", "bonus"):
                return

    def generation(self) -> Generation:
        """The finished answer, or what there is of an interrupted one."""
        return self.finished or Generation(
            prompt_tokens=self.prompt_tokens,
            tokens=self.tokens,
            text=self.text,
            finish_reason=INTERRUPTED,
        )


class Interrupt:
    """Turns Ctrl-C into a request to end, so that no step is cut; a second Ctrl-C interrupts.

    This holds while its `with` block runs.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None  # the signal handler to restore

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
