"""The loop: draft, verify, accept, commit. Every method of the framework runs through it.

prefill, emit one token
until stopped:
    propose: the tree policy grows a draft from the drafter
    judge:   the target has scored it in one pass; the rule decides; stop conditions cut
    settle:  the cache has committed, tokens are emitted, everyone observes

`step_lanes` is a step of any number of sequences, which share the pass and the host read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from specframe.cache.base import CacheManager
from specframe.components import Components, exclusive
from specframe.measure.clock import Clock
from specframe.records import Context, Emission, Observer, StepRecord
from specframe.session.lane import Judged, Lane, Terms, read_together
from specframe.session.shared_pass import score_lanes
from specframe.types import Draft, TargetOutput


class Decoding:
    """Decodes one sequence at a time; satisfies `InnerLoop`.

    Invariant between steps: the target's cache holds every token of the context except the last,
    the root. terms: what its answers have in common. clock: stamps the phases of each step.
    """

    def __init__(
        self,
        components: Components,
        terms: Terms,
        *,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        self.components = components
        self.terms = terms
        self.clock = clock or Clock(components.target.device)
        self._observers: tuple[Observer, ...] = (components.drafter, components.tree, *observers)
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
        (record,) = step_lanes({0: self}, self.components.cache)
        return record

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

    def judge(self, draft: Draft, out: TargetOutput) -> Judged:
        """What the rule says of a draft that the target has scored."""
        parts, lane = self.components, self.lane
        laws = lane.laws(draft, out)
        verdict = parts.accept.decide(draft, laws, lane.rng)
        return lane.judged(draft, laws, out, verdict, parts.drafter.readback(draft, out))

    def record(self, step: Judged, values: list[int]) -> StepRecord:
        """The record of a step, given what the host has read of it. ConfigError for NaN."""
        record, state = self.lane.record(step, values)
        self.components.check_sound(state)
        record.marks = self.clock.marks
        return record

    def settle(self, record: StepRecord, observers: Sequence[Observer] | None = None) -> None:
        """Emit what was committed, and let everyone see it: the second half of the loop."""
        lane = self.lane
        lane.context.extend(record.tokens)
        lane.finish_reason = record.finish_reason
        for observer in self._observers if observers is None else observers:
            observer.observe(record)

    @exclusive
    def begin(self, prompt: Sequence[int], *, sequence: int = 0) -> list[int]:
        """Prefill; emit one token, if any is allowed. Raises ConfigError for a prompt too long."""
        parts, clock = self.components, self.clock
        self._lane = lane = self.terms.lane(parts, prompt, sequence)
        clock.start()
        out = parts.target.prefill(prompt, parts.cache, taps=parts.drafter.traits.needs.taps)
        first, state = lane.first_token(out)
        clock.mark("verify")
        parts.check_sound(state)
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
        parts, lane, tail = self.components, self.lane, list(tail)
        lane.go_back(length, num_tail=len(tail))
        parts.cache.truncate(0, min(parts.cache.lengths[0], max(length - 1, 0)))
        parts.drafter.truncate(length)
        if tail:
            builder = lane.builder("place")
            builder.chain(tail[:-1])
            # Through a verify pass, so that the drafter sees an ordinary step.
            draft = parts.with_slots(builder.build())
            out = parts.target.score(draft, parts.cache, taps=parts.drafter.traits.needs.taps)
            record = lane.forced(draft, out, tail)
            parts.commit(record)
            self.settle(record, observers=[parts.drafter])
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


@exclusive
def step_lanes(lanes: Mapping[int, Decoding], cache: CacheManager) -> list[StepRecord]:
    """One step of each lane, of which none has finished: a draft each, one verify pass for all.

    cache: of the target; its lane of each number is that decoding's. They share one clock.
    """
    loops = list(lanes.values())
    parts, clock = loops[0].components, loops[0].clock
    for loop in loops:
        assert loop.finish_reason is None, "the sequence is finished"
        loop.lane.check_current()
    clock.start()
    drafts = {number: loop.propose() for number, loop in lanes.items()}
    clock.mark("draft")
    drafts = {number: lanes[number].components.with_slots(drafts[number]) for number in lanes}
    outs = score_lanes(parts.target, drafts, cache, taps=parts.drafter.traits.needs.taps)
    clock.mark("verify")
    scored = zip(loops, drafts.values(), outs, strict=True)
    steps = [loop.judge(draft, out) for loop, draft, out in scored]
    waited = zip(loops, steps, read_together(steps), strict=True)
    records = [loop.record(step, values) for loop, step, values in waited]
    clock.mark("accept")
    for loop, record in zip(loops, records, strict=True):
        loop.components.commit(record)
    clock.mark("commit")
    for loop, record in zip(loops, records, strict=True):
        loop.settle(record)
    clock.mark("host")
    return records
