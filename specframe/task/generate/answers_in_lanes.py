"""Answers to many prompts at once, written in the order of the prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specframe.measure.meter import Meter
from specframe.prompts.questions import conversation
from specframe.prompts.reader import PromptRecord
from specframe.session.engine import Engine
from specframe.session.lanes import FinishedAnswer, Request
from specframe.task.generate.generated_answers import AnsweredTurn, GeneratedAnswers

Place = tuple[int, int]  # (number of the record, turn)


@dataclass(kw_only=True)
class Conversation:
    """A record of the prompt file and the answers that it has so far."""

    record: PromptRecord
    number: int  # of the record, from 1
    answers: list[str] = field(default_factory=list)

    def turn(self) -> AnsweredTurn:
        """The turn that is to be answered next."""
        return AnsweredTurn(record=self.record, turn=len(self.answers), number=self.number)

    @property
    def is_over(self) -> bool:
        """Whether every turn has its answer."""
        return len(self.answers) == len(self.record.turns)


@dataclass(frozen=True)
class _Asked:
    conversation: Conversation
    meter: Meter


class AnswersInLanes:
    """Decodes conversations in lanes. The next turn of one waits until the last one is answered.

    An answer that ends before an earlier prompt's is held back until that one is written, so that
    the files read as those of one answer at a time, and a killed run goes on behind whole ones.
    """

    def __init__(
        self,
        engine: Engine,
        results: GeneratedAnswers,
        *,
        batch_size: int,
        written: Callable[[AnsweredTurn, FinishedAnswer], None],
    ) -> None:
        self._engine, self._results, self._written = engine, results, written
        self._lanes = engine.lanes(batch_size)
        self._ready: deque[Conversation] = deque()
        self._asked: dict[int, _Asked] = {}
        self._done: dict[Place, Callable[[], None]] = {}
        self._order: deque[Place] = deque()
        self._num_asked = 0

    def answer_all(self, conversations: Sequence[Conversation]) -> None:
        """Answer every turn that has no answer yet."""
        for each in conversations:
            turns = range(len(each.answers), len(each.record.turns))
            self._order += [(each.number, turn) for turn in turns]
        self._ready += [each for each in conversations if not each.is_over]
        self._results.summary.batch = self._lanes.times
        for finished in self._lanes.answers(self):
            self._take(finished)

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        """The next prompt that can be asked; StopIteration while there is none."""
        while self._ready:
            conversing = self._ready.popleft()
            meter = Meter(self._engine.components.target.device)
            try:
                prompt = conversation(self._engine, conversing.record, conversing.answers)
                meter.begin()
                tokens = self._engine.encode(prompt)
            except ValueError as error:
                self._refuse(conversing, error)
                continue
            self._num_asked += 1
            self._asked[self._num_asked] = _Asked(conversing, meter)
            return Request(number=self._num_asked, prompt_tokens=tokens, observers=[meter])
        raise StopIteration

    def _take(self, finished: FinishedAnswer) -> None:
        asked = self._asked.pop(finished.request.number)
        conversing, entry = asked.conversation, asked.conversation.turn()
        answer = finished.answer
        if answer is None:
            assert finished.error is not None
            self._refuse(conversing, finished.error)
            return
        metrics = asked.meter.end(first_tokens=len(answer.tokens[:1]))

        def write() -> None:
            self._results.add(entry, answer, metrics, warm=finished.warm)
            self._written(entry, finished)

        conversing.answers.append(answer.text)
        if not conversing.is_over:
            self._ready.appendleft(conversing)
        self._write(entry, write)

    def _refuse(self, conversing: Conversation, error: ValueError) -> None:
        """The turn cannot be answered, and those after it have nothing to answer."""
        entry = conversing.turn()
        for turn in range(entry.turn + 1, len(conversing.record.turns)):
            self._order.remove((conversing.number, turn))
        self._write(entry, lambda: self._results.add_error(entry, str(error)))

    def _write(self, entry: AnsweredTurn, write: Callable[[], None]) -> None:
        """Write a turn once all before it are written."""
        self._done[entry.number, entry.turn] = write
        while self._order and (ready := self._done.pop(self._order[0], None)) is not None:
            self._order.popleft()
            ready()
