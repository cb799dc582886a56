"""Asks every side every prompt, interleaved, and makes a row of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from specframe.errors import ConfigError
from specframe.prompts.reader import PromptRecord
from specframe.session.engine import Engine
from specframe.task.benchmark.quality import (
    Agreement,
    agreement,
    logit_gap,
    mean_logprob,
    number_is_right,
)
from specframe.task.benchmark.rows import Reference, Row, digest_of
from specframe.task.benchmark.sides import BASELINE, METHOD, Side, TimeSample, Turn, sides, turn_of

NUMBER, CODE = "number", "code"  # names of the scores
OVERALL = "all"  # category of prompts that name none


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a contest is held. rounds: answers a side gives to each prompt; split: once more, with
    the clock that waits; code_is_right(text, record): runs an answer, None to leave that out."""

    rounds: int
    split: bool
    code_is_right: Callable[[str, PromptRecord], bool | None] | None


class Contest:
    """An engine beside its baseline (if that is wanted) or beside texts of an earlier one, and
    beside whatever else is added to `sides`."""

    def __init__(
        self, engine: Engine, rules: Rules, *, baseline: bool, reference: Reference | None
    ) -> None:
        self.engine = engine
        self.rules = rules
        self.reference = reference
        self.sides: list[Side] = sides(engine, baseline=baseline)
        self._lossy = not engine.parts.accept.lossless

    def warm_up(self, record: PromptRecord) -> None:
        """Answer the first turn of a prompt on every side, uncounted."""
        for side in self.sides:
            side.begin()
            side.remember()
            with suppress(ConfigError):  # told when its turn comes
                side.answer(side.encode(record.turns[:1]), 0)
            side.recall()

    def learn(self, record: PromptRecord, *, sequence: int) -> None:
        """Answer a prompt of an earlier run again, uncounted, for drafters that keep it."""
        for side in self.sides:
            if side.keeps:
                side.begin()
                with suppress(ConfigError):  # told when it was asked
                    for turn in range(len(record.turns)):
                        asked = side.encode(record.turns[: turn + 1])
                        side.before.append(side.answer(asked, sequence + turn).tokens)

    @property
    def keeps(self) -> bool:
        """Whether an answer depends on the prompts before."""
        return any(side.keeps for side in self.sides)

    def row(
        self, record: PromptRecord, *, index: int, sequence: int, made: Callable[[int], None]
    ) -> Row:
        """Ask one prompt, turn by turn; `made` is told of every turn's tokens.

        sequence: number of its first turn among all turns, which keys the noise.
        """
        held: dict[str, list[Turn]] = {side.name: [] for side in self.sides}
        prompts: list[list[int]] = []
        row = Row(
            index=index,
            id=record.id,
            category=record.category or OVERALL,
            digest=digest_of(record),
            sides=held,
        )
        for side in self.sides:
            side.begin()
        for turn in range(len(record.turns)):
            try:
                asked = record.turns[: turn + 1]
                prompts.append(self._turn(asked, sequence + turn, index, held))
            except ConfigError as error:
                told = f"turn {turn + 1}: {error}" if turn else str(error)
                nothing: dict[str, list[Turn]] = {name: [] for name in held}
                return replace(row, sides=nothing, error=" ".join(told.split()))
            made(sum(len(turns[turn].tokens) for turns in held.values()))
        return replace(
            row, agreements=self._agreements(row, prompts), scores=self._scores(row, record)
        )

    def _turn(
        self, turns: Sequence[str], sequence: int, index: int, held: dict[str, list[Turn]]
    ) -> list[int]:
        """One turn of every side; returns the method's prompt."""
        prompts = {side.name: side.encode(turns) for side in self.sides}
        samples: dict[str, list[TimeSample]] = {side.name: [] for side in self.sides}
        for side in self.sides:
            side.remember()
        for number in range(self.rules.rounds):
            # Who goes first changes, so that a drift of the machine favours nobody.
            order = self.sides if (index + number) % 2 == 0 else self.sides[::-1]
            for side in order:
                side.recall()
                samples[side.name].append(side.answer(prompts[side.name], sequence))
        for side in self.sides:
            made = turn_of(side, prompts[side.name], sequence, samples[side.name])
            if self.rules.split:
                side.recall()
                made.split = side.split(prompts[side.name], sequence)
            if self._lossy:
                made.target_logprob = mean_logprob(side.engine, prompts[side.name], made.tokens)
            held[side.name].append(made)
            side.before.append(made.tokens)
        return prompts[METHOD]

    def _agreements(self, row: Row, prompts: Sequence[Sequence[int]]) -> list[Agreement]:
        mine = row.sides[METHOD]
        if self.reference is not None:
            exact = self.reference.of(row.digest, [one.sequence for one in mine])
        else:
            exact = row.sides.get(BASELINE, [])
        found: list[Agreement] = []
        for prompt, turn, other in zip(prompts, mine, exact, strict=False):
            one = agreement(turn.tokens, other.tokens)
            place = one.num_common
            if not one.same and place < min(len(turn.tokens), len(other.tokens)) and not found:
                text = other.tokens[: place + 1]
                gap = logit_gap(self.engine, prompt, text, turn.tokens[place])
                one = replace(one, logit_gap=gap)
            found.append(one)
        return found

    def _scores(self, row: Row, record: PromptRecord) -> dict[str, dict[str, bool]]:
        found: dict[str, dict[str, bool]] = {}
        for name, turns in row.sides.items():
            number = number_is_right(turns[0].text, record.reference)
            if number is not None:
                found.setdefault(NUMBER, {})[name] = number
            if self.rules.code_is_right is not None:
                code = self.rules.code_is_right(turns[0].text, record)
                if code is not None:
                    found.setdefault(CODE, {})[name] = code
        return found
