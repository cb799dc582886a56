"""Asks every side every prompt, in turns, and makes one row of each prompt."""

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
NO_CATEGORY = "all"  # category of prompts that name none


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How the sides are asked."""

    rounds: int  # answers that a side gives to each prompt
    split: bool  # whether each prompt is answered once more, with a clock that waits
    # Runs an answer's code and says whether it is right; None leaves that out.
    code_is_right: Callable[[str, PromptRecord], bool | None] | None


class Contest:
    """The sides of a benchmark, which answer the same prompts one after the other.

    They are the engine and, if wanted, its baseline; a comparison may add more to `sides`.
    `reference` holds texts of an earlier baseline, which are then the exact ones.
    """

    def __init__(
        self, engine: Engine, rules: Rules, *, baseline: bool, reference: Reference | None
    ) -> None:
        self.engine = engine
        self.rules = rules
        self.reference = reference
        self.sides: list[Side] = sides(engine, baseline=baseline)
        self._lossy = not engine.components.accept.lossless

    def warm_up(self, record: PromptRecord) -> None:
        """Let every side answer the first turn of a prompt, uncounted."""
        for side in self.sides:
            side.begin()
            side.remember()
            with suppress(ConfigError):  # reported when the prompt is asked for its row
                side.answer(side.encode(record), 0)
            side.recall()

    def learn(self, record: PromptRecord, *, sequence: int) -> None:
        """Ask a prompt of an earlier run again, uncounted, where the drafter learns from it."""
        for side in self.sides:
            if side.learns:
                side.begin()
                with suppress(ConfigError):  # it is in the row of the earlier run
                    for turn in range(len(record.turns)):
                        prompt = side.encode(record)
                        side.before.append(side.answer(prompt, sequence + turn).tokens)

    @property
    def learns(self) -> bool:
        """Whether answers of any side depend on the prompts before."""
        return any(side.learns for side in self.sides)

    def row(
        self, record: PromptRecord, *, index: int, sequence: int, tick: Callable[[int], None]
    ) -> Row:
        """Ask one prompt, turn by turn.

        index: of the prompt in the suite; sequence: number of its first turn among all turns, which
        keys the noise; tick: called after each turn with the number of new tokens.
        """
        answers: dict[str, list[Turn]] = {side.name: [] for side in self.sides}
        prompts: list[list[int]] = []
        row = Row(
            index=index,
            id=record.id,
            category=record.category or NO_CATEGORY,
            digest=digest_of(record),
            sides=answers,
        )
        for side in self.sides:
            side.begin()
        for turn in range(len(record.turns)):
            try:
                prompts.append(self._turn(record, sequence + turn, index, answers))
            except ConfigError as error:
                reason = f"turn {turn + 1}: {error}" if turn else str(error)
                nothing: dict[str, list[Turn]] = {name: [] for name in answers}
                return replace(row, sides=nothing, error=" ".join(reason.split()))
            tick(sum(len(turns[turn].tokens) for turns in answers.values()))
        return replace(
            row, agreements=self._agreements(row, prompts), scores=self._scores(row, record)
        )

    def _turn(
        self, record: PromptRecord, sequence: int, index: int, answers: dict[str, list[Turn]]
    ) -> list[int]:
        """Add every side's answer to its next turn; returns the method's prompt."""
        prompts = {side.name: side.encode(record) for side in self.sides}
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
            answer = turn_of(side, prompts[side.name], sequence, samples[side.name])
            if self.rules.split:
                side.recall()
                answer.split = side.split(prompts[side.name], sequence)
            if self._lossy:
                answer.target_logprob = mean_logprob(side.engine, prompts[side.name], answer.tokens)
            answers[side.name].append(answer)
            side.before.append(answer.tokens)
        return prompts[METHOD]

    def _agreements(self, row: Row, prompts: Sequence[Sequence[int]]) -> list[Agreement]:
        mine = row.sides[METHOD]
        if self.reference is not None:
            exact = self.reference.of(row.digest, [turn.sequence for turn in mine])
        else:
            exact = row.sides.get(BASELINE, [])
        pairs: list[Agreement] = []
        for prompt, turn, other in zip(prompts, mine, exact, strict=False):
            pair = agreement(turn.tokens, other.tokens)
            place = pair.num_common
            # The gap of the first turn alone: behind it, the two prompts may differ.
            if not pair.same and place < min(len(turn.tokens), len(other.tokens)) and not pairs:
                text = other.tokens[: place + 1]
                gap = logit_gap(self.engine, prompt, text, turn.tokens[place])
                pair = replace(pair, logit_gap=gap)
            pairs.append(pair)
        return pairs

    def _scores(self, row: Row, record: PromptRecord) -> dict[str, dict[str, bool]]:
        """Score -> side -> whether its first answer is right, for scores that the prompt has."""
        scores: dict[str, dict[str, bool]] = {}
        for name, turns in row.sides.items():
            number = number_is_right(turns[0].text, record.reference)
            if number is not None:
                scores.setdefault(NUMBER, {})[name] = number
            if self.rules.code_is_right is not None:
                code = self.rules.code_is_right(turns[0].text, record)
                if code is not None:
                    scores.setdefault(CODE, {})[name] = code
        return scores
