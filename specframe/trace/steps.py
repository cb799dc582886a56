"""Every step of a run as a line of trace.jsonl, written while the run goes on.

What a step left on the device is gathered into one tensor and read when the next step has ended:
by then it is computed, so the trace never makes the host wait for the device.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from specframe.accept.base import Explanation
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.measure.clock import Clock
from specframe.records import Observer, StepRecord
from specframe.session.engine import Engine
from specframe.session.generation import Generation
from specframe.session.text_stream import TextStream
from specframe.trace.base import TRACES, Trace, TracedPrompt, Tracer
from specframe.tracing.answer_ends import answer_ends
from specframe.tracing.drafter_probs import drafter_probs
from specframe.tracing.node_outcomes import StepOutcome, node_outcomes
from specframe.tracing.token_texts import TokenTexts

TRACE_FILE = "trace.jsonl"


@TRACES.register("steps")
class StepTrace(Trace):
    """Writes what each step drafted, accepted and refused, and why; the tree viewer reads it.

    trace.jsonl in the run's folder has one object a line: `answer` (prompt and first token), then a
    `step` for each verify pass (live nodes with the root first: tokens, parents, probabilities by
    target and draft, sources, what became of each, times of the phases), then `end`. README.md in
    this folder lists every key. A run that is killed leaves all lines but that of its last step,
    and the same command goes on behind the last answer that has ended. target_probs are by the laws
    that the rule asked for (one-hot at temperature 0); target_softmax is by the softmax of the raw
    logits, at every node (softmax=true). Times of
    phases are those of the loop's clock; what the trace itself takes is part of `host`, and
    `trace_ms` says how much. One host read a step, of values that the step before has left.
    """

    host_reads: ClassVar[int] = 1

    def __init__(self, *, softmax: bool) -> None:
        self.softmax = softmax

    def open(self, engine: Engine, folder: Path, config: dict[str, Any]) -> Tracer:
        return _Lines(engine, folder / TRACE_FILE, softmax=self.softmax)


@dataclass(frozen=True)
class _PendingStep:
    """A step that is not written yet.

    It is not the record itself, whose tensors are large and live until the next pass only.
    """

    num_rows: int
    depth: int
    host: dict[str, Any]  # what the host knew
    marks: list[tuple[str, object]]  # of the clock; the engine adds the last one after `observe`
    values: Tensor  # what the device knew, read when the step is written
    explanation: Explanation | None
    sources: list[str | None]  # of each draw call
    spent_ms: list[float] = field(default_factory=list)  # what the trace itself took


class _Lines(Tracer):
    def __init__(self, engine: Engine, path: Path, *, softmax: bool) -> None:
        self._engine, self._softmax = engine, softmax
        self._texts = TokenTexts(engine)
        self._clock = Clock(engine.components.target.device)
        drafter = type(engine.components.drafter)
        # Whole branches do not say which source they are from; a single drafter is the only one.
        self._source = None if drafter.traits.sources else drafter.__name__.lower()
        self._pending: _PendingStep | None = None
        self._prompt: TracedPrompt | None = None
        self._ends = answer_ends(path)
        # A lone surrogate becomes its own JSON escape.
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        self.keep(sys.maxsize)

    def has(self, number: int) -> bool:
        return number in self._ends

    def keep(self, num_answers: int) -> None:
        self._ends = {number: end for number, end in self._ends.items() if number < num_answers}
        self._file.truncate(max(self._ends.values(), default=0))

    def begin(self, prompt: TracedPrompt) -> Sequence[Observer]:
        self._write_pending()  # the last step of an answer that was given up
        if self.has(prompt.number):
            self.keep(prompt.number)  # it is decoded anew
        self._prompt, self._num_steps = prompt, 0
        self._stream = TextStream(self._engine.components.target.tokenizer)
        self._rng = Streams(seed=self._engine.settings.seed, sequence=prompt.sequence)
        self._clock.start()
        return [self]

    def observe(self, record: StepRecord) -> None:
        start = time.perf_counter()
        self._write_pending()
        if self._num_steps == 0:
            begun, (_, stamp) = self._clock.marks[0], record.marks[0]
            prefill = sum(self._clock.durations_ms([begun, ("host", stamp)]).values())
            # Prefill's token is the root of the first step, which leaves nothing else to be read.
            self._write_answer(record.draft.tokens[:1].tolist(), prefill)
        self._pending = self._gathered(record)
        self._num_steps += 1
        self._pending.spent_ms.append(1e3 * (time.perf_counter() - start))

    def end(self, generation: Generation, metrics: dict[str, Any]) -> None:
        assert self._prompt is not None
        if self._num_steps == 0:
            self._write_answer(generation.tokens, 1e3 * metrics["prefill_s"])
        self._write_pending()
        line = {
            "kind": "end",
            "answer": self._prompt.number,
            "finish_reason": generation.finish_reason,
        }
        self._write(line | {"text": generation.text, "metrics": metrics})

    def close(self) -> None:
        self._write_pending()  # the last whole step of an answer that was cut
        self._file.close()

    def _gathered(self, record: StepRecord) -> _PendingStep:
        """A step with its numbers in one tensor of the device, read when the next step ends."""
        draft, laws, verdict = record.draft, record.laws, record.verdict
        assert isinstance(laws, Laws)
        rule = self._engine.components.accept
        if laws.is_empty:  # a captured rule made its laws out of sight, so it is asked again
            rule.decide(draft, laws, self._rng)
        known, drafted = laws.known(), drafter_probs(draft)
        softmax = _softmax(record) if self._softmax else torch.full_like(known, torch.nan)
        explained = rule.explain(draft, laws, self._rng, verdict)
        parts = [draft.tokens, draft.parents, draft.alive, verdict.path[0], known, softmax]
        parts += [drafted.probs, drafted.calls]
        parts += [] if explained is None else [explained.values]
        return _PendingStep(
            num_rows=draft.num_rows,
            depth=draft.depth,
            host=self._host(record),
            marks=record.marks,
            values=torch.cat([part.to(known.device, torch.float64) for part in parts]),
            explanation=explained,
            sources=[call.source or self._source for call in draft.calls],
        )

    def _host(self, record: StepRecord) -> dict[str, Any]:
        """What needs no host read."""
        draft = record.draft
        aux = 0 if draft.aux is None else draft.aux.tokens.shape[0]
        return {
            "step": self._num_steps,
            "rows": draft.num_rows + aux,
            "emitted": record.tokens,
            "emitted_texts": [self._stream.add(token) for token in record.tokens],
            "num_accepted": record.num_accepted,
            "was_cut": record.was_cut,
            "finish_reason": record.finish_reason,
        }

    def _write_pending(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._write(self._line(pending))

    def _line(self, pending: _PendingStep) -> dict[str, Any]:
        assert self._prompt is not None
        n, num_accepted = pending.num_rows, pending.host["num_accepted"]
        values = iter(pending.values.tolist())
        tokens, parents, alive = (_integers(values, n) for _ in range(3))
        path = _integers(values, pending.depth)
        target, softmax, draft = (_numbers(values, n) for _ in range(3))
        calls = _integers(values, n)
        refused = pending.explanation and pending.explanation.words(
            list(values), self._texts.quoted
        )
        why = node_outcomes(
            StepOutcome(
                parents=parents, path=path, num_accepted=num_accepted, refused=refused or {}
            )
        )
        live = [row for row in range(n) if alive[row]]
        place = {row: i for i, row in enumerate(live)} | {-1: -1}
        times = self._clock.durations_ms(pending.marks)
        return {
            "kind": "step",
            "answer": self._prompt.number,
            **pending.host,
            "tokens": [tokens[row] for row in live],
            "texts": [self._texts.text(tokens[row]) for row in live],
            "parents": [place[parents[row]] for row in live],
            "target_probs": [target[row] for row in live],
            "target_softmax": [softmax[row] for row in live],
            "draft_probs": [draft[row] for row in live],
            "sources": [pending.sources[calls[row]] if calls[row] >= 0 else None for row in live],
            "path": [place[row] for row in path[:num_accepted]],
            "why": [why[row] for row in live],
            "ms": {phase: round(spent, 4) for phase, spent in times.items()},
            "trace_ms": round(sum(pending.spent_ms), 4),
        }

    def _write_answer(self, first: Sequence[int], prefill_ms: float) -> None:
        prompt = self._prompt
        assert prompt is not None
        self._write(
            {
                "kind": "answer",
                "answer": prompt.number,
                "id": prompt.id,
                "category": prompt.category,
                "prompt": prompt.prompt,
                "prompt_tokens": list(prompt.prompt_tokens),
                "tokens": list(first),
                "texts": [self._stream.add(token) for token in first],
                "prefill_ms": round(prefill_ms, 4),
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def _softmax(record: StepRecord) -> Tensor:
    """[N] float64 probability of each row's token by the softmax of its parent's raw logits."""
    draft, logits = record.draft, record.out.logits
    # One fused pass: log-sum-exp is three, over copies of all logits, and takes twice as long.
    law = logits.softmax(-1, dtype=None if logits.dtype == torch.float64 else torch.float32)
    probs = law[draft.parents.clamp_min(0), draft.tokens].double()
    return torch.where(draft.parents >= 0, probs, torch.nan)


def _integers(values: Iterator[float], count: int) -> list[int]:
    return [int(next(values)) for _ in range(count)]


def _numbers(values: Iterator[float], count: int) -> list[float | None]:
    """The next numbers to six digits; NaN, which JSON does not have, becomes None."""
    numbers = (next(values) for _ in range(count))
    return [float(f"{number:.6g}") if number == number else None for number in numbers]
