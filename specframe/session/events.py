"""What a stream of an answer says of each token: how it came about, and the text that it adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from specframe.records import Emission, StepRecord
from specframe.session.text_stream import TextStream

Kind = Literal["first", "accepted", "recovered", "bonus", "rejected", "rest"]


@dataclass(frozen=True)
class Event:
    """One token of a stream: how it came, its id, the text it adds, and the step (0: prefill).

    `rejected` events show the drafted token that lost its place to the recovered one; they belong
    to no text. Others' `text` concatenates to the answer. `rest` has no token (-1), only what was
    held back of a character that the answer's end cut.
    """

    kind: Kind
    token: int
    text: str
    step: int


class EventMaker:
    """Makes the events of one answer. shown: the text of rejected tokens; None leaves them out."""

    def __init__(self, text: TextStream, shown: Callable[[Sequence[int]], str] | None) -> None:
        self._text, self._shown = text, shown
        self._step = -1

    def events(self, emission: Emission) -> Iterator[Event]:
        """Those of the next emission."""
        self._step += 1
        step, record = self._step, emission.record
        if record is None:
            for token in emission.tokens:
                yield Event("first", token, self._text.add(token), step)
            return
        refused = None if self._shown is None else refused_token(record)
        for place, (kind, token) in enumerate(kinds_of(record)):
            if self._shown and place == record.num_accepted and refused is not None:
                yield Event("rejected", refused, self._shown([refused]), step)
            yield Event(kind, token, self._text.add(token), step)

    def rest(self) -> Iterator[Event]:
        """What is left once the answer has ended: at most one event."""
        if rest := self._text.rest():
            yield Event("rest", -1, rest, self._step)


def events_of(emissions: Iterable[Emission], maker: EventMaker) -> Iterator[Event]:
    """The events of one answer."""
    for emission in emissions:
        yield from maker.events(emission)
    yield from maker.rest()


def kinds_of(record: StepRecord) -> list[tuple[Kind, int]]:
    """How each emitted token of a step came about."""
    kinds: list[Kind] = ["accepted"] * record.num_accepted
    if len(record.tokens) > record.num_accepted:
        kinds.append("recovered" if refused_token(record) is not None else "bonus")
    return list(zip(kinds, record.tokens, strict=True))


def refused_token(record: StepRecord) -> int | None:
    """The first drafted child of the last accepted row, which the emitted token replaced.

    Reads the draft on the host: a diagnostic, made only when someone watches.
    """
    draft, last = record.draft, record.path[-1] if record.path else 0
    if record.was_cut or draft.num_rows == 1:
        return None
    children = (draft.parents == last) & draft.alive
    tokens = draft.tokens[children]
    return int(tokens[0]) if torch.numel(tokens) else None
