"""Answers prompts: streamed to the terminal, and written to files as they are finished."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from specframe.measure.meter import Meter
from specframe.measure.metrics import RunSummary
from specframe.prompts.questions import conversation
from specframe.prompts.reader import PromptRecord, first_prompt
from specframe.records import Observer, is_warm, memory_of
from specframe.session.engine import Engine
from specframe.session.events import Event
from specframe.session.generation import Generation
from specframe.session.lanes import FinishedAnswer
from specframe.session.prompt_encoding import Prompt
from specframe.task.base import TASKS, Job, Task
from specframe.task.benchmark.plain_pace import payoff_of
from specframe.task.generate.answers_in_lanes import AnswersInLanes, Conversation
from specframe.task.generate.generated_answers import AnsweredTurn, GeneratedAnswers
from specframe.terminal.answer import Colour, Display, one_line
from specframe.terminal.progress import duration


@TASKS.register("generate")
class Generate(Task):
    """Answers prompts, and prints the numbers of the run.

    With `batch_size` above 1 so many are decoded at once: every text is the one that its prompt
    gets alone, each is shown once it is whole, and the numbers say what all lanes did together.

    `stream` prints answers as they come; without it only the progress is shown. `show_rejected`
    also shows the drafted token that each recovered token replaced, which costs one host read a
    step; `auto` does so where there is colour. `colour` is auto (on a terminal), always or never.
    The last line says whether drafting paid, by known costs or by ten tokens of plain decoding.

    A conversation of several turns is answered turn by turn on top of the model's own answers. A
    prompt that cannot be started (too long, empty) is recorded with finish_reason "error", and the
    others go on; the exit code is then 1. Ctrl-C and a kill keep what was finished, and the same
    command in the same folder goes on behind it. A drafter that learns from prompt to prompt is
    then asked the earlier ones again, uncounted.

    The run leaves, written as it goes, generations.jsonl (one object for each answer with prompt,
    text, tokens, finish_reason, num_prompt_tokens and metrics; id and category where given; `turn`
    from 0 in a conversation), metrics.json and manifest.json. With a drafter that learns from
    prompt to prompt, each object says whether its answer began `warm`, and the metrics of cold and
    warm answers are also given apart.
    """

    can_trace: ClassVar[bool] = True
    can_batch: ClassVar[bool] = True
    same_in_any_batch: ClassVar[bool] = True
    free: ClassVar[tuple[str, ...]] = ("stream", "colour", "show_rejected")

    def __init__(
        self, *, stream: bool, colour: Colour, show_rejected: bool | Literal["auto"]
    ) -> None:
        self.stream = stream
        self.colour = colour
        self.show_rejected = show_rejected

    def run(self, job: Job) -> int:
        records, engine = _records(job), job.trace.traced_engine(job.engine)
        display = Display(colour=self.colour)
        opened = job.trace.open(engine, job.output_dir, job.config)
        with opened as recorder, GeneratedAnswers(job, recorder) as results:
            try:
                if job.batch_size > 1:
                    self._answer_together(job, records, display, results)
                else:
                    self._answer_all(engine, records, display, results)
            finally:
                display.end_line()
                if results.reasons:
                    display.table(results.summary, results.reasons)
                    display.note(f"written to {os.path.relpath(job.output_dir)}")
            if results.prompt and job.batch_size == 1:
                display.say(payoff_of(job.engine, results.summary, prompt=results.prompt))
        return int(results.summary.num_errors > 0)

    def _answer_all(
        self,
        engine: Engine,
        records: Sequence[PromptRecord],
        display: Display,
        results: GeneratedAnswers,
    ) -> None:
        if results.num_earlier:
            _say(f"{len(records)} prompts; answers that are there: {results.num_earlier}")
        if self.stream:
            display.legend(rejected=display.shows_rejected(self.show_rejected))
        for number, record in enumerate(records, start=1):
            answers, is_over = results.earlier(record, number)
            if answers and memory_of(engine.components.drafter) is not None:
                _learn(engine, record, answers)
            if is_over:
                continue
            if len(records) > 1:
                left = _time_left(results.summary, number - 1, len(records))
                display.heading(_heading(record, f"{number}/{len(records)}", left))
            for turn in range(len(answers), len(record.turns)):
                entry = AnsweredTurn(record=record, turn=turn, number=number)
                if not self._answer(engine, entry, answers, display, results):
                    break  # the next turn has nothing to answer
                if len(records) > 1 or len(record.turns) > 1:
                    display.note(one_line(results.last, results.reasons[-1]))

    def _answer_together(
        self,
        job: Job,
        records: Sequence[PromptRecord],
        display: Display,
        results: GeneratedAnswers,
    ) -> None:
        """Answer several records at a time; each answer is shown once it is whole."""
        if results.num_earlier:
            _say(f"{len(records)} prompts; answers that are there: {results.num_earlier}")

        def show(entry: AnsweredTurn, finished: FinishedAnswer) -> None:
            assert finished.answer is not None
            left = _time_left_together(results.summary, len(records))
            display.heading(_heading(entry.record, f"{entry.number}/{len(records)}", left))
            if self.stream:
                display.prompt(entry.text)
                display.say(finished.answer.text)
            display.note(one_line(results.last, results.reasons[-1]))

        lanes = AnswersInLanes(job.engine, results, batch_size=job.batch_size, written=show)
        conversations = []
        for number, record in enumerate(records, start=1):
            answers, is_over = results.earlier(record, number)
            if not is_over:
                one = Conversation(record=record, number=number, answers=answers)
                conversations.append(one)
        lanes.answer_all(conversations)

    def _answer(
        self,
        engine: Engine,
        entry: AnsweredTurn,
        answers: list[str],
        display: Display,
        results: GeneratedAnswers,
    ) -> bool:
        """Answer one turn and append the text to `answers`. Returns False if it could not start."""
        if self.stream:
            if entry.turn:
                display.paragraph()
            display.prompt(entry.text)
        meter = Meter(engine.components.target.device)
        try:
            prompt = conversation(engine, entry.record, answers)
            meter.begin()
            tokens = engine.encode(prompt)
            watchers = [meter, *results.watch(entry, tokens)]
            answer = self._decode(engine, tokens, watchers, display)
        except ValueError as error:
            if meter.num_steps:
                raise  # the error came later than the prompt was checked
            _say(f"prompt {entry.number}: {error}")
            results.add_error(entry, str(error))
            return False
        metrics = meter.end(first_tokens=len(answer.tokens[:1]))
        results.add(entry, answer, metrics, warm=is_warm(engine.components.drafter))
        answers.append(answer.text)
        return True

    def _decode(
        self, engine: Engine, tokens: Prompt, watchers: Sequence[Observer], display: Display
    ) -> Generation:
        if not self.stream:
            return engine.generate(tokens, observers=watchers)
        rejected = display.shows_rejected(self.show_rejected)
        events = _Stream(engine.stream(tokens, observers=watchers, show_rejected=rejected))
        display.answer(iter(events))
        assert events.result is not None
        return events.result


@dataclass
class _Stream:
    """The events of an answer, which remembers the answer that the stream returns at its end."""

    events: Iterator[Event]
    result: Generation | None = field(default=None)

    def __iter__(self) -> Iterator[Event]:
        self.result = yield from self.events  # type: ignore[func-returns-value]


def _learn(engine: Engine, record: PromptRecord, answers: Sequence[str]) -> None:
    """Decode earlier answers again, uncounted, for what the drafter learns from them."""
    for turn in range(len(answers)):
        engine.generate(engine.encode(conversation(engine, record, answers[:turn])))


def _records(job: Job) -> list[PromptRecord]:
    """The user's prompts, or else a single built-in one."""
    return [first_prompt()] if job.prompt is None and job.prompts is None else job.records()


def _heading(record: PromptRecord, place: str, left: str) -> str:
    """What stands above an answer among several: its place, its name, the time that is left."""
    named = record.category or ("" if record.id is None else str(record.id))
    return "  ".join(part for part in (place, named, left) if part)


def _time_left(summary: RunSummary, done: int, count: int) -> str:
    """How long the rest will take at the speed so far; "" while nothing is known."""
    if not done or not summary.num_prompts:
        return ""
    return f"about {duration(summary.total.total_s / done * (count - done))} left"


def _time_left_together(summary: RunSummary, count: int) -> str:
    """The same where several prompts share their time."""
    batch, left = summary.batch, count - summary.num_prompts - summary.num_errors
    done = summary.num_prompts
    if batch is None or not done or left <= 0:
        return ""
    return f"about {duration(batch.wall_s / done * left)} left"


def _say(text: str) -> None:
    sys.stderr.write(f"specframe: {' '.join(text.split())}\n")
