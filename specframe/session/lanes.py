"""Several answers at once: each in a lane of its own, the target's pass shared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from specframe.buffers.side_by_side import SideBySide
from specframe.components import Components
from specframe.errors import IncompatibleComponents
from specframe.loop import Decoding, step_lanes
from specframe.measure.batch_times import BatchTimes
from specframe.measure.clock import Clock
from specframe.records import Emission, Observer, is_warm
from specframe.registry import word_of
from specframe.session.events import Event, EventMaker
from specframe.session.generation import Generation, Tally
from specframe.session.lane import Terms
from specframe.session.text_stream import TextStream


@dataclass(frozen=True, kw_only=True)
class Request:
    """An answer that is wanted. number: whatever tells it from others; it comes back with it."""

    number: int
    prompt_tokens: Sequence[int]
    sequence: int = 0  # keys its noise
    observers: Sequence[Observer] = ()


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a step gave to one answer."""

    request: Request
    loop: Decoding  # of its lane; it may be given to another answer once this one has ended
    emission: Emission | None = None  # None where the prompt was refused
    error: ValueError | None = None  # why it was
    started_s: float  # when its prompt came in, by time.perf_counter

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of this answer."""
        return self.error is not None or self.loop.finish_reason is not None


@dataclass(frozen=True, kw_only=True)
class FinishedAnswer:
    """An answer that has ended, or why its prompt was refused."""

    request: Request
    answer: Generation | None = None
    error: ValueError | None = None
    warm: bool | None = None  # whether its drafter began with what earlier answers left


# (loop, tally, prompt tokens, tokens) of an answer that has ended -> the answer
Answer = Callable[[Decoding, Tally, Sequence[int], list[int]], Generation]


class Lanes:
    """Decodes answers in as many lanes as there are components; a free lane takes the next one.

    Every answer is token for token the one that its prompt gets alone.
    """

    def __init__(self, lanes: Sequence[Components], terms: Terms, answer: Answer) -> None:
        self.times = BatchTimes(batch_size=len(lanes))
        self._lanes, self._terms, self._answer = lanes, terms, answer
        self._clock = Clock(lanes[0].target.device)
        caches = [parts.cache for parts in lanes]
        self._cache = caches[0] if len(caches) == 1 else SideBySide(caches)

    def run(self, requests: Iterable[Request]) -> Iterator[Progress]:
        """Decode answers to all requests, which are taken as lanes become free.

        An iterator may have none for now, and others once an answer has ended.
        """
        waiting = iter(requests)
        running: dict[int, Progress] = {}
        while True:
            for lane in range(len(self._lanes)):
                while lane not in running and (request := next(waiting, None)) is not None:
                    started = self._begin(lane, request)
                    if not started.is_over:
                        running[lane] = started
                    yield started
            if not running:
                return
            loops = {lane: running[lane].loop for lane in sorted(running)}
            start = time.perf_counter()
            records = step_lanes(loops, self._cache)
            count = sum(len(record.tokens) for record in records)
            spent = time.perf_counter() - start
            self.times.add_step(num_tokens=count, num_lanes=len(loops), spent_s=spent)
            for lane, record in zip(loops, records, strict=True):
                progress = replace(running[lane], emission=Emission(record.tokens, record))
                if progress.is_over:
                    del running[lane]
                yield progress

    def answers(self, requests: Iterable[Request]) -> Iterator[FinishedAnswer]:
        """The same, one whole answer after the other, in the order in which they end."""
        tallies: dict[int, Tally] = {}
        texts: dict[int, list[int]] = {}

        for progress in self.run(requests):
            request = progress.request
            tally = tallies.setdefault(request.number, Tally(started=progress.started_s))
            tokens = texts.setdefault(request.number, [])
            if progress.emission is not None:
                tally.add(progress.emission)
                tokens += progress.emission.tokens
            if not progress.is_over:
                continue
            del tallies[request.number], texts[request.number]
            if progress.error is not None:
                yield FinishedAnswer(request=request, error=progress.error)
                continue
            yield FinishedAnswer(
                request=request,
                answer=self._answer(progress.loop, tally, request.prompt_tokens, tokens),
                warm=is_warm(progress.loop.components.drafter),
            )

    def events(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """(number of the request, event) as they come; a refused prompt's error is raised."""
        makers: dict[int, EventMaker] = {}
        for progress in self.run(requests):
            if progress.error is not None:
                raise progress.error
            assert progress.emission is not None
            number = progress.request.number
            if number not in makers:
                text = TextStream(progress.loop.components.target.tokenizer)
                makers[number] = EventMaker(text, None)
            own = makers[number]
            for event in own.events(progress.emission):
                yield number, event
            if progress.is_over:
                for event in makers.pop(number).rest():
                    yield number, event

    def _begin(self, lane: int, request: Request) -> Progress:
        loop = Decoding(
            self._lanes[lane], self._terms, observers=request.observers, clock=self._clock
        )
        start = time.perf_counter()
        try:
            first = loop.begin(request.prompt_tokens, sequence=request.sequence)
        except ValueError as error:
            return Progress(request=request, loop=loop, error=error, started_s=start)
        self.times.add_prefill(num_tokens=len(first), spent_s=time.perf_counter() - start)
        emission = Emission(first, None)
        return Progress(request=request, loop=loop, emission=emission, started_s=start)


def check_company(parts: Components, batch_size: int) -> None:
    """Raises IncompatibleComponents where an answer would depend on the answers beside it."""
    if batch_size > 1 and is_warm(parts.drafter) is not None and not parts.accept.same_text:
        raise IncompatibleComponents(
            f"batch_size={batch_size}: the drafter keeps what it learnt from prompt to prompt, and "
            f"under accept={word_of(parts.accept)} its drafts decide the text, which would depend "
            "on the answers beside it; use accept=match, let it keep nothing, or batch_size=1"
        )
