"""The loop: draft, verify, accept, commit. Every method of the framework runs through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specframe.capture.growing import Ground, grow
from specframe.capture.judging import judge
from specframe.components import Parts
from specframe.drafting.builder import TreeBuilder
from specframe.errors import ConfigError
from specframe.law.laws import Laws
from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.measure.clock import Clock
from specframe.records import Context, Observer, StepRecord
from specframe.session.stopping import Stopping
from specframe.types import Draft, How, TargetOutput, Verdict


class Decoding:
    """Decodes one sequence at a time; satisfies `InnerLoop`.

    Invariant between steps: the target's cache holds every token of the context except the last,
    the root. sampling and stopping are made for a prompt length; streams for a sequence number.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        max_new_tokens: int,
        sampling: Callable[[int], Sampling],
        stopping: Stopping,
        streams: Callable[[int], Streams],
        observers: Sequence[Observer] = (),
    ) -> None:
        self.parts = parts
        self.max_new_tokens = max_new_tokens
        self.clock = Clock(parts.target.device)
        self._make_sampling = sampling
        self._stopping = stopping
        self._make_streams = streams
        self._observers = observers

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], *, sequence: int = 0) -> list[int]:
        """Prefill and emit one token. Raises ConfigError for a prompt that does not fit."""
        parts = self.parts
        parts.check_prompt(prompt)
        max_slots = parts.max_slots(len(prompt), self.max_new_tokens)
        parts.cache.launcher = parts.runtime.recording
        parts.cache.reset(rows=max_slots, device=parts.target.device)
        self._limit = parts.limit(len(prompt), self.max_new_tokens)
        self.sampling = self._make_sampling(len(prompt))
        self.rng = self._make_streams(sequence)
        self.finish_reason: str | None = None
        self.context = Context.of(prompt, parts.target.device, sequence)
        self.context.cache, self.context.max_slots = parts.cache, max_slots
        parts.cache.holder = self.context
        self.clock.start()
        out = parts.target.prefill(prompt, parts.cache, taps=parts.drafter.needs.taps)
        token, code, finite = self._first(out)
        self.clock.mark("verify")
        self._check_finite(finite)
        self.context.extend([token])
        self.finish_reason = self._stopping.reason(code)
        parts.drafter.begin(self.context, out)
        parts.tree.begin(self.context)
        self.clock.mark("host")
        return [token]

    @torch.inference_mode()
    def step(self) -> StepRecord:
        """One draft, one verify pass; emits at least one token. Not to be called once finished."""
        parts, clock = self.parts, self.clock
        assert self.finish_reason is None, "the sequence is finished"
        self._check_holder()
        clock.start()
        draft = self._draft()
        clock.mark("draft")
        out = parts.target.score(draft, parts.cache, taps=parts.drafter.needs.taps)
        clock.mark("verify")
        laws = self._laws(draft, out)
        verdict = judge(parts.accept, draft, laws, self.rng, parts.runtime)
        record = self._read(draft, laws, out, verdict)
        clock.mark("accept")
        self._commit(record)
        clock.mark("commit")
        self.context.extend(record.tokens)
        self.finish_reason = record.finish_reason
        watchers: tuple[Observer, ...] = (parts.drafter, parts.tree, *self._observers)
        for watcher in watchers:
            watcher.observe(record)
        clock.mark("host")
        return record

    @torch.inference_mode()
    def truncate(self, length: int, tail: Sequence[int] = ()) -> None:
        """Go back to `length` tokens of the context, then append `tail` as if it was emitted.

        Raises ConfigError if that leaves less than the prompt and one token.
        """
        self._check_holder()
        total = length + len(tail)
        if length > len(self.context) or not self.context.prompt_length < total <= self._limit:
            raise ConfigError(
                f"cannot truncate {len(self.context)} tokens to {length} and go on to {total}; "
                f"the prompt has {self.context.prompt_length}, the limit is {self._limit}"
            )
        parts = self.parts
        self.context.truncate(length)
        parts.cache.truncate(min(parts.cache.length, max(length - 1, 0)))
        parts.drafter.truncate(length)
        if tail:
            self._force(list(tail))
        self.finish_reason = "length" if total == self._limit else None

    def room(self) -> int:
        """Tokens that may still be emitted before the length limit."""
        return self._limit - len(self.context)

    def _force(self, tail: list[int]) -> None:
        """Emit given tokens through a verify pass, so that the drafter sees an ordinary step."""
        parts = self.parts
        chain = torch.tensor([tail[:-1]], dtype=torch.long, device=parts.target.device)
        builder = self._builder("place")
        frontier = builder.root
        for column in range(chain.shape[1]):
            frontier = builder.place(frontier, chain[:, column : column + 1])
        draft = self._with_slots(builder.build())
        out = parts.target.score(draft, parts.cache, taps=parts.drafter.needs.taps)
        path = list(range(1, len(tail)))
        verdict = Verdict(
            path=chain.new_tensor(path),
            tokens=chain.new_tensor(tail),
            count=chain.new_tensor(len(tail)),
        )
        record = StepRecord(
            draft=draft,
            laws=self._laws(draft, out),
            out=out,
            verdict=verdict,
            path=path,
            tokens=tail,
            num_accepted=len(path),
            was_cut=False,
            length_before=len(self.context),
        )
        self._commit(record)
        self.context.extend(record.tokens)
        parts.drafter.observe(record)

    def _draft(self) -> Draft:
        parts = self.parts
        budget = parts.budget(len(self.context), self._limit)
        draft = grow(parts, self._ground(), budget)
        if parts.has_room_for_aux():
            draft = parts.drafter.aux(draft, budget)
        return self._with_slots(draft)

    def _builder(self, how: How) -> TreeBuilder:
        return self._ground().builder(how)

    def _ground(self) -> Ground:
        return Ground(context=self.context.ids, sampling=self.sampling, rng=self.rng)

    def _with_slots(self, draft: Draft) -> Draft:
        if draft.slots is not None:
            return draft
        return replace(draft, slots=self.parts.cache.reserve(draft.num_rows), in_order=True)

    def _laws(self, draft: Draft, out: TargetOutput) -> Laws:
        return Laws(
            draft=draft, logits=out.logits, context=self.context.ids, sampling=self.sampling
        )

    def _read(self, draft: Draft, laws: Laws, out: TargetOutput, verdict: Verdict) -> StepRecord:
        """The step's one host read; stop conditions cut the verdict here and nowhere else."""
        readback = self.parts.drafter.readback(draft, out)
        codes = self._stopping.codes(self.context, verdict.tokens, self._limit - len(self.context))
        finite = _finite(out.logits)
        parts = [verdict.count.view(1), finite, verdict.path, verdict.tokens, codes]
        parts += [] if readback is None else [readback.view(-1)]
        values = torch.cat([part.to(verdict.tokens.device) for part in parts]).tolist()
        count, depth = values[0], verdict.path.shape[0]
        self._check_finite(values[1])
        path, values = values[2 : 2 + depth], values[2 + depth :]
        tokens, values = values[: depth + 1], values[depth + 1 :]
        stops, extra = values[: depth + 1], values[depth + 1 :]
        kept = next((i + 1 for i, code in enumerate(stops[:count]) if code), count)
        return StepRecord(
            draft=draft,
            laws=laws,
            out=out,
            verdict=verdict,
            path=path[: kept - 1],
            tokens=tokens[:kept],
            num_accepted=min(count - 1, kept),
            was_cut=kept < count,
            length_before=len(self.context),
            finish_reason=self._stopping.reason(stops[kept - 1]),
            readback=extra,
            marks=self.clock.marks,
        )

    def _commit(self, record: StepRecord) -> None:
        cache, draft = self.parts.cache, record.draft
        rows = [0, *record.path]
        moved = not draft.in_order or rows != list(range(len(rows)))
        assert draft.slots is not None
        index = torch.tensor(rows, device=draft.tokens.device)
        cache.commit(draft.slots[index], len(rows), moved=moved)

    def _first(self, out: TargetOutput) -> tuple[int, int, int]:
        """(token, stop code, finite) after prefill: the law of the last prompt row."""
        builder = self._builder("place")
        laws = self._laws(builder.build(), out)
        root = torch.zeros(1, dtype=torch.long, device=out.logits.device)
        token = laws.pick(root, 0, self.rng, root == 0)
        codes = self._stopping.codes(self.context, token, self._limit - len(self.context))
        token_id, code, finite = torch.cat([token, codes, _finite(out.logits)]).tolist()
        return token_id, code, finite

    def _check_holder(self) -> None:
        """One sequence at a time: a later one has taken the cache and the drafter over."""
        if self.parts.cache.holder is not self.context:
            raise ConfigError(
                "this answer was superseded by a later one of the same engine; finish it first, "
                "or load a second engine"
            )

    def _check_finite(self, finite: int) -> None:
        if not finite:
            target = self.parts.target
            raise ConfigError(
                f"{target.name} gave logits that are not finite in {target.dtype}; "
                "try target.dtype=float32"
            )


def _finite(logits: Tensor) -> Tensor:
    """[1] int64: no NaN and no positive infinity (the maximum of a row carries both)."""
    return logits.amax().isfinite().long().view(1)
