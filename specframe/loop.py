"""The loop: draft, verify, accept, commit. Every method of the framework runs through it.

prefill, emit one token
until stopped:
    propose: the tree policy grows a draft from the drafter
    settle:  the target scores it in one pass, the rule decides, stop conditions cut,
             the cache commits, tokens are emitted, everyone observes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from specframe.components import Components, exclusive
from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.measure.clock import Clock
from specframe.records import Context, Emission, Observer, StepRecord
from specframe.session.lane import Lane
from specframe.session.stopping import Stopping
from specframe.types import Draft


class Decoding:
    """Decodes one sequence at a time; satisfies `InnerLoop`.

    Invariant between steps: the target's cache holds every token of the context except the last,
    the root. sampling and stopping are made for a prompt length; streams for a sequence number.
    """

    def __init__(
        self,
        components: Components,
        *,
        max_new_tokens: int,
        sampling: Callable[[int], Sampling],
        stopping: Stopping,
        streams: Callable[[int], Streams],
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
        log_probs: bool = False,
    ) -> None:
        self.components = components
        self.max_new_tokens = max_new_tokens
        self.clock = clock or Clock(components.target.device)
        self._make_sampling = sampling
        self._stopping = stopping
        self._make_streams = streams
        self._observers: tuple[Observer, ...] = (components.drafter, components.tree, *observers)
        self._log_probs = log_probs
        self._lane: Lane | None = None

    def run(self, prompt: Sequence[int], *, sequence: int = 0) -> Iterator[Emission]:
        """Decode an answer, step by step. Raises ConfigError for a prompt that does not fit."""
        yield Emission(self.begin(prompt, sequence=sequence), None)
        while self.finish_reason is None:
            record = self.step()
            yield Emission(record.tokens, record)

    @exclusive
    def step(self) -> StepRecord:
        """One draft, one verify pass; emits at least one token. Not to be called once finished."""
        assert self.finish_reason is None, "the sequence is finished"
        self.lane.check_current()
        self.clock.start()
        draft = self.propose()
        self.clock.mark("draft")
        return self.settle(draft)

    def propose(self) -> Draft:
        """The draft of a step: the first half of the loop."""
        parts, lane = self.components, self.lane
        budget = parts.budget(len(lane.context), lane.limit)
        builder = lane.builder(parts.how)
        parts.tree.grow(builder, parts.drafter, budget)
        draft = builder.build(pad_to=parts.runtime.launch.bucket(builder.num_rows, budget.rows))
        if parts.has_room_for_aux(draft):
            draft = parts.drafter.aux(draft, budget)
        return replace(draft, synthetic=True) if parts.drafter.traits.synthetic else draft

    def settle(self, draft: Draft, *, tail: list[int] | None = None) -> StepRecord:
        """Verify a draft, emit what is right, commit it: the second half of the loop.

        tail: tokens to emit whatever the target says of them; None: those of the rule.
        """
        parts, lane, clock = self.components, self.lane, self.clock
        if draft.slots is None:
            fresh = parts.cache.reserve([draft.num_rows])
            draft = replace(draft, slots=fresh.slots, columns=fresh.columns, in_order=True)
        out = parts.target.score(draft, parts.cache, taps=parts.drafter.traits.needs.taps)
        clock.mark("verify")
        if tail is None:
            laws = lane.laws(draft, out)
            verdict = parts.accept.decide(draft, laws, lane.rng)
            extra = parts.drafter.readback(draft, out)
            record, finite = lane.read(draft, laws, out, verdict, extra)
            parts.check_finite(finite)
        else:
            record = lane.forced(draft, out, tail)
        record.marks = clock.marks
        clock.mark("accept")
        parts.commit(record)
        clock.mark("commit")
        lane.context.extend(record.tokens)
        lane.finish_reason = record.finish_reason
        for observer in self._observers[: 1 if tail else None]:  # the drafter comes first
            observer.observe(record)
        clock.mark("host")
        return record

    @exclusive
    def begin(self, prompt: Sequence[int], *, sequence: int = 0) -> list[int]:
        """Prefill; emit one token, if any is allowed. Raises ConfigError for a prompt too long."""
        parts, clock = self.components, self.clock
        parts.check_prompt(prompt)
        columns = parts.max_columns(len(prompt), self.max_new_tokens)
        self._lane = lane = Lane(
            tenancy=parts.cache.open(0, columns=columns, device=parts.target.device),
            context=parts.context(
                prompt, sequence=sequence, columns=columns, max_new_tokens=self.max_new_tokens
            ),
            limit=parts.limit(len(prompt), self.max_new_tokens),
            sampling=self._make_sampling(len(prompt)),
            rng=self._make_streams(sequence),
            stopping=self._stopping,
            log_probs=[] if self._log_probs else None,
        )
        clock.start()
        out = parts.target.prefill(prompt, parts.cache, taps=parts.drafter.traits.needs.taps)
        first, finite = lane.first_token(out)
        clock.mark("verify")
        parts.check_finite(finite)
        lane.context.extend(first)
        if first:
            parts.drafter.begin(lane.context, out)
            parts.tree.begin(lane.context)
        clock.mark("host")
        return first

    @exclusive
    def truncate(self, length: int, tail: Sequence[int] = ()) -> None:
        """Go back to `length` tokens of the context, then append `tail` as if it was emitted.

        Raises ConfigError if that leaves less than the prompt and one token.
        """
        parts, lane = self.components, self.lane
        lane.go_back(length, num_tail=len(tail))
        parts.cache.truncate(0, min(parts.cache.lengths[0], max(length - 1, 0)))
        parts.drafter.truncate(length)
        if tail:
            self.clock.start()
            builder = lane.builder("place")
            builder.chain(tail[:-1])
            # Through a verify pass, so that the drafter sees an ordinary step.
            self.settle(builder.build(), tail=list(tail))
        lane.finish_reason = None if lane.room() else "length"

    @property
    def lane(self) -> Lane:
        """The sequence under way."""
        assert self._lane is not None, "no sequence has begun"
        return self._lane

    @property
    def context(self) -> Context:
        """Prompt and emitted tokens of the sequence under way."""
        return self.lane.context

    @property
    def finish_reason(self) -> str | None:
        """Why the sequence has ended; None while it goes on."""
        return self.lane.finish_reason

    def room(self) -> int:
        """Tokens that may still be emitted before the length limit."""
        return self.lane.room()
