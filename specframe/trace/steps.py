"""Every step of a run as a line of trace.jsonl, written as it goes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from specframe.accept.base import Explanation
from specframe.law.laws import Laws
from specframe.law.streams import Streams
from specframe.measure.clock import Clock
from specframe.records import Observer, StepRecord
from specframe.session.engine import Engine, Generation, TextStream
from specframe.trace.base import TRACES, Trace, TracedPrompt, Tracer
from specframe.tracing.drafter_probs import drafter_probs
from specframe.tracing.node_outcomes import StepOutcome, node_outcomes
from specframe.tracing.token_texts import TokenTexts

TRACE_FILE = "trace.jsonl"


@TRACES.register("steps")
class StepTrace(Trace):
    """What each step drafted, accepted and refused, and why; the tree viewer's food.

    trace.jsonl in the run's folder holds an object a line: `answer` (prompt and first token), then
    a `step` for each verify pass (live nodes, root first: tokens, parents, probabilities of target
    and draft, sources, what became of each, the times of the phases), then `end`. A killed run
    keeps every line but the step that it was in. Times of phases are those of the loop's clock;
    what the trace itself takes is part of `host`, and `trace_ms` says how much.
    target_probs: by the laws that the rule asked for (one-hot at temperature 0); target_softmax:
    by the softmax of the raw logits, at every node (softmax=true). Reads the host once a step, of
    values that the step before has left, so it waits for nothing.
    """

    extra_syncs: ClassVar[int] = 1

    def __init__(self, *, softmax: bool) -> None:
        self.softmax = softmax

    def open(self, engine: Engine, folder: Path, config: dict[str, Any]) -> Tracer:
        return _Lines(engine, folder / TRACE_FILE, softmax=self.softmax)


@dataclass(frozen=True)
class _Left:
    """A step that is not written yet: what the host knew, and what the device holds.

    Not the record itself, whose tensors are large and live until the next pass. sources: of each
    call; marks: the engine adds the last one after `observe`."""

    num_rows: int
    depth: int
    host: dict[str, Any]
    marks: list[tuple[str, object]]
    values: Tensor
    explanation: Explanation | None
    sources: list[str | None]
    spent_ms: list[float] = field(default_factory=list)


class _Lines(Tracer):
    def __init__(self, engine: Engine, path: Path, *, softmax: bool) -> None:
        self._engine, self._softmax = engine, softmax
        self._glyphs = TokenTexts(engine)
        self._clock = Clock(engine.parts.target.device)
        drafter = type(engine.parts.drafter)
        # Whole branches do not say who gave them; a single drafter is known.
        self._source = None if drafter.sources else drafter.__name__.lower()
        self._left: _Left | None = None
        self._prompt: TracedPrompt | None = None
        # A lone surrogate becomes its own JSON escape.
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace")

    def begin(self, prompt: TracedPrompt) -> Sequence[Observer]:
        self._write_left()  # of an answer that was given up
        self._prompt, self._num_steps = prompt, 0
        self._text = TextStream(self._engine)
        self._rng = Streams(seed=self._engine.settings.seed, sequence=prompt.sequence)
        self._clock.start()
        return [self]

    def observe(self, record: StepRecord) -> None:
        start = time.perf_counter()
        self._write_left()
        if self._num_steps == 0:
            begun, (_, stamp) = self._clock.marks[0], record.marks[0]
            prefill = sum(self._clock.durations_ms([begun, ("host", stamp)]).values())
            # Prefill's token is the root of the first step, which leaves nothing else to be read.
            self._write_answer(int(record.draft.tokens[0]), prefill)
        self._left = self._taken(record)
        self._num_steps += 1
        self._left.spent_ms.append(1e3 * (time.perf_counter() - start))

    def end(self, generation: Generation, metrics: dict[str, Any]) -> None:
        assert self._prompt is not None
        if self._num_steps == 0:
            self._write_answer(generation.tokens[0], 1e3 * metrics["prefill_s"])
        self._write_left()
        line = {
            "kind": "end",
            "answer": self._prompt.number,
            "finish_reason": generation.finish_reason,
        }
        self._write(line | {"text": generation.text, "metrics": metrics})

    def close(self) -> None:
        self._write_left()  # the last whole step of an answer that was cut
        self._file.close()

    def _taken(self, record: StepRecord) -> _Left:
        """A step's numbers gathered in one tensor of the device, to be read when the next ends."""
        draft, laws, verdict = record.draft, record.laws, record.verdict
        assert isinstance(laws, Laws)
        known, found = laws.known(), drafter_probs(draft)
        softmax = _softmax(record) if self._softmax else torch.full_like(known, torch.nan)
        explained = self._engine.parts.accept.explain(draft, laws, self._rng, verdict)
        parts = [draft.tokens, draft.parents, draft.alive, verdict.path, known, softmax]
        parts += [found.probs, found.calls]
        parts += [] if explained is None else [explained.values]
        return _Left(
            num_rows=draft.num_rows,
            depth=draft.depth,
            host=self._host(record),
            marks=record.marks,
            values=torch.cat([part.to(known.device, torch.float64) for part in parts]),
            explanation=explained,
            sources=[call.source or self._source for call in draft.calls],
        )

    def _host(self, record: StepRecord) -> dict[str, Any]:
        """What needs no read."""
        draft = record.draft
        aux = 0 if draft.aux is None else draft.aux.tokens.shape[0]
        return {
            "step": self._num_steps,
            "rows": draft.num_rows + aux,
            "emitted": record.tokens,
            "emitted_texts": [self._text.add(token) for token in record.tokens],
            "num_accepted": record.num_accepted,
            "was_cut": record.was_cut,
            "finish_reason": record.finish_reason,
        }

    def _write_left(self) -> None:
        if self._left is not None:
            left, self._left = self._left, None
            self._write(self._line(left))

    def _line(self, left: _Left) -> dict[str, Any]:
        assert self._prompt is not None
        n, num_accepted = left.num_rows, left.host["num_accepted"]
        values = iter(left.values.tolist())
        tokens, parents, alive = (_integers(values, n) for _ in range(3))
        path = _integers(values, left.depth)
        target, softmax, draft = (_numbers(values, n) for _ in range(3))
        calls = _integers(values, n)
        said = left.explanation and left.explanation.words(list(values), self._glyphs.quoted)
        why = node_outcomes(
            StepOutcome(parents=parents, path=path, num_accepted=num_accepted, refused=said or {})
        )
        live = [row for row in range(n) if alive[row]]
        place = {row: i for i, row in enumerate(live)} | {-1: -1}
        times = self._clock.durations_ms(left.marks)
        return {
            "kind": "step",
            "answer": self._prompt.number,
            **left.host,
            "tokens": [tokens[row] for row in live],
            "texts": [self._glyphs.text(tokens[row]) for row in live],
            "parents": [place[parents[row]] for row in live],
            "target_probs": [target[row] for row in live],
            "target_softmax": [softmax[row] for row in live],
            "draft_probs": [draft[row] for row in live],
            "sources": [left.sources[calls[row]] if calls[row] >= 0 else None for row in live],
            "path": [place[row] for row in path[:num_accepted]],
            "why": [why[row] for row in live],
            "ms": {phase: round(spent, 4) for phase, spent in times.items()},
            "trace_ms": round(sum(left.spent_ms), 4),
        }

    def _write_answer(self, first: int, prefill_ms: float) -> None:
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
                "tokens": [first],
                "texts": [self._text.add(first)],
                "prefill_ms": round(prefill_ms, 4),
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def _softmax(record: StepRecord) -> Tensor:
    """[N] float64: the softmax of the raw logits at each row's parent, of the row's token."""
    draft, logits = record.draft, record.out.logits
    # One fused pass: log-sum-exp is three, over copies of all logits, and takes twice as long.
    law = logits.softmax(-1, dtype=None if logits.dtype == torch.float64 else torch.float32)
    found = law[draft.parents.clamp_min(0), draft.tokens].double()
    return torch.where(draft.parents >= 0, found, torch.nan)


def _integers(values: Iterator[float], count: int) -> list[int]:
    return [int(next(values)) for _ in range(count)]


def _numbers(values: Iterator[float], count: int) -> list[float | None]:
    """NaN, which JSON has not, is null. Six digits are more than anyone looks at."""
    found = (next(values) for _ in range(count))
    return [float(f"{one:.6g}") if one == one else None for one in found]
