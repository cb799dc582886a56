"""An answer: its tokens and text, why it ended, and what it took to decode it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from specframe.records import Emission
from specframe.session.row_table import RowTable


@dataclass(frozen=True, kw_only=True)
class StepCount:
    """What one verify pass gave: emitted tokens, and how many of them were drafted ones."""

    num_tokens: int
    num_accepted: int


@dataclass(frozen=True, kw_only=True)
class Generation:
    """An answer: token ids after the prompt, their text, why it ended, its steps and times.

    finish_reason: eos, stop, length, or exhausted where the processors ban every token. log_probs:
    of each token by the target's processed law at its place, natural logarithms; None unless they
    were wanted. At temperature 0 that law is the softmax of the processed scores.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    finish_reason: str
    log_probs: list[float] | None = None
    steps: list[StepCount] = field(default_factory=list)
    # Two runs of one prompt are the same answer, however long they took.
    prefill_s: float = field(default=0.0, compare=False)  # from the prompt to its first token
    decode_s: float = field(default=0.0, compare=False)  # of all steps

    @property
    def num_steps(self) -> int:
        """Verify passes."""
        return len(self.steps)

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that were emitted."""
        return sum(step.num_accepted for step in self.steps)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of verify steps a verify pass, bonus included; None without any pass."""
        emitted = sum(step.num_tokens for step in self.steps)
        return emitted / len(self.steps) if self.steps else None

    @property
    def total_s(self) -> float:
        """Seconds from the prompt to the last token."""
        return self.prefill_s + self.decode_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of verify steps a second of decoding, without the prefill."""
        emitted = sum(step.num_tokens for step in self.steps)
        return emitted / self.decode_s if self.decode_s else None

    def table(self) -> RowTable:
        """One row a token: its place, the step that emitted it (0: the prefill), whom it came from.

        source: prefill, draft (a drafted token that was accepted) or target (recovered or bonus).
        """
        sources = [(0, "prefill")][: len(self.tokens)]
        for number, step in enumerate(self.steps, start=1):
            for place in range(step.num_tokens):
                sources.append((number, "draft" if place < step.num_accepted else "target"))
        rows: list[dict[str, object]] = [
            {"place": place, "step": step, "source": source, "token": token}
            for place, ((step, source), token) in enumerate(zip(sources, self.tokens, strict=False))
        ]
        for row, log_prob in zip(rows, self.log_probs or [], strict=False):
            row["log_prob"] = log_prob
        return RowTable(rows)


def say_exhausted(num_tokens: int, keys: Sequence[str]) -> None:
    """Say that an answer ended since these keys of the configuration leave no token."""
    sys.stderr.write(
        f"specframe: the answer ends after {num_tokens} tokens: {', '.join(keys)} ban every token "
        "that could follow; loosen one of them\n"
    )


class Tally:
    """Counts and times one answer while it is decoded, without a read from the device."""

    def __init__(self, *, started: float | None = None) -> None:
        """started: when the prompt came in, by time.perf_counter; None: now."""
        self._started = time.perf_counter() if started is None else started
        self._first = self._last = self._started
        self._steps: list[StepCount] = []

    def watched(self, emissions: Iterable[Emission]) -> Iterator[Emission]:
        """The same emissions, which are counted and timed as they come."""
        for emission in emissions:
            self.add(emission)
            yield emission

    def add(self, emission: Emission) -> None:
        """Count what came now."""
        self._last = time.perf_counter()
        if emission.record is None:
            self._first = self._last
            return
        count, accepted = len(emission.tokens), emission.record.num_accepted
        self._steps.append(StepCount(num_tokens=count, num_accepted=accepted))

    def generation(
        self,
        *,
        prompt_tokens: Sequence[int],
        tokens: Sequence[int],
        text: str,
        finish_reason: str | None,
        log_probs: list[float] | None,
    ) -> Generation:
        """The answer, once it has ended."""
        return Generation(
            prompt_tokens=list(prompt_tokens),
            tokens=list(tokens),
            text=text,
            finish_reason=finish_reason or "",
            log_probs=log_probs,
            steps=self._steps,
            prefill_s=self._first - self._started,
            decode_s=self._last - self._first,
        )
