"""A conversation with an engine: what was said, and an answer that may be ended early."""

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
from specframe.session.engine import Engine, Event, Generation, Prompt
from specframe.terminal.answer import Display

INTERRUPTED = "interrupted"  # finish reason of an answer that Ctrl-C ended


@dataclass
class Talk:
    """A conversation so far: the user's turns and the model's answers to them."""

    engine: Engine
    system: str | None
    rejected: bool
    turns: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    num_asked: int = 0  # turns since the start, which key the noise

    def reset(self) -> None:
        """Nothing was said."""
        self.turns, self.answers = [], []

    def ask(self, turn: str, display: Display) -> tuple[Generation, Metrics]:
        """Stream one answer. Raises ConfigError for a turn that does not fit, and
        KeyboardInterrupt for an interrupted one that has no text; both leave it unsaid."""
        prompt = self._prompt([*self.turns, turn])
        tokens = self.engine.encode(prompt)
        answer = _Answer(prompt_tokens=tokens)
        meter = Meter(self.engine.parts.target.device)
        meter.begin()
        with Interrupt() as interrupt:
            stream = self.engine.stream(
                tokens, sequence=self.num_asked, observers=[meter], show_rejected=self.rejected
            )
            display.answer(answer.follow(stream, interrupt))
        metrics = meter.end()
        self.num_asked += 1
        made = answer.made()
        self.turns.append(turn)
        self.answers.append(made.text)
        return made, metrics

    def _prompt(self, turns: list[str]) -> Prompt:
        prompt = conversation(self.engine, turns, self.answers)
        if self.system is None:
            return prompt
        tokenizer = self.engine.parts.target.tokenizer
        if self.engine.settings.raw or tokenizer is None or tokenizer.chat_template is None:
            return f"{self.system}\n\n{prompt}"
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return [{"role": "system", "content": self.system}, *said]


@dataclass
class _Answer:
    """An answer as it is shown, which may end early."""

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: Generation | None = None

    def follow(self, stream: Iterator[Event], interrupt: Interrupt) -> Iterator[Event]:
        """The events, until the stream ends or, between two steps, the user wants it to."""
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
            if interrupt.wanted and event.kind in ("first", "recovered", "bonus"):
                return

    def made(self) -> Generation:
        """The whole answer, or what there is of it."""
        return self.finished or Generation(
            prompt_tokens=self.prompt_tokens,
            tokens=self.tokens,
            text=self.text,
            finish_reason=INTERRUPTED,
        )


class Interrupt:
    """Ctrl-C as a wish, so that no step is torn; a second one is an interrupt."""

    def __init__(self) -> None:
        self.wanted = False
        self._held: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._held = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._held is not None:
            signal.signal(signal.SIGINT, self._held)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
