"""Measures what the steps of an engine cost: passes by rows, drafts by width, look-ups.

A verify pass is timed through the loop itself, with a policy that drafts as many children of the
root as it is told, so everything that a step does is in its time. Sizes take turns within each
repeat, so that a machine that slows down meets all of them, and medians are taken.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from specframe.costs.warmup_runs import warmup_runs
from specframe.drafter.base import Drafter, Traits
from specframe.drafting.builder import TreeBuilder
from specframe.lookup.foresight import prospects_of
from specframe.loop import Decoding
from specframe.measure.busy_clock import BusyClock
from specframe.planning.cost_table import CostTable, DraftCost
from specframe.session.engine import Engine
from specframe.session.stopping import StopConfig
from specframe.tree.base import Source, TreePolicy, widest
from specframe.types import Budget, Frontier, Needs, Proposal

_ALPHABET = 61  # ids of the text that is measured on: few, so that look-ups find something
_LEVELS = 3  # of a draft that is timed


@dataclass(frozen=True, kw_only=True)
class TimingPlan:
    """What is measured; of each time the median is taken."""

    rows: tuple[int, ...]  # of a verify pass, from 1 on
    contexts: tuple[int, ...]  # cached tokens behind which the passes are timed
    widths: tuple[int, ...]  # nodes of a level that is drafted
    repeats: int  # of every measurement

    @property
    def num_steps(self) -> int:
        """Number of verify passes over rows, including the first ones, whose time is not taken."""
        return len(self.contexts) * len(self.rows) * (self.repeats + 1)


def row_counts(max_rows: int, buckets: Sequence[int] | None) -> tuple[int, ...]:
    """The numbers of rows to time, up to the first power of two that is at least `max_rows`.

    These are the powers of two and, from 2 on, the sizes half way between two of them, since a
    kernel may take longer for 3 rows than for 4; where passes are padded, they are the buckets.
    """
    counts, size = [1], 1
    while size < max_rows:
        size *= 2
        counts += [size * 3 // 4, size] if size > 2 else [size]
    padded = [bucket for bucket in buckets or () if bucket < size]
    return tuple(sorted({1, *padded, size})) if padded else tuple(counts)


class StepTimer:
    """Times the steps of an engine."""

    def __init__(
        self,
        engine: Engine,
        plan: TimingPlan,
        *,
        capacity: int | None,
        tick: Callable[[int], None],
    ) -> None:
        """capacity: of the engine's cache in tokens, None for no limit.

        tick(n): called when n more of the plan's steps are done.
        """
        never = StopConfig(eos=[], strings=None, criteria=None)
        self._engine = Engine(engine.components, replace(engine.settings, stop=never))
        self._device = engine.components.target.device
        self._clock = BusyClock(self._device)
        self.lookup_sources: list[str] = []  # sources that look up, known once there is a table
        self._tick = tick
        self._unlike = warmup_runs(
            engine.components.runtime.launch
        )  # so many first runs are not timed
        self.plan = plan
        self.plan = self._fitted(plan, capacity)

    @torch.inference_mode()
    def table(self) -> CostTable:
        """All that costs time; how often guesses are right is left empty."""
        drafter = self._engine.components.drafter
        silent = _SilentDrafter(drafter.traits.needs)
        lines = [self._passes(silent, context) for context in self.plan.contexts]
        lookup_ms, networks = self._look_ups(drafter)
        buckets = self._engine.components.runtime.launch.buckets or []
        return CostTable(
            rows=self.plan.rows,
            contexts=self.plan.contexts,
            pass_ms=tuple(whole for whole, _ in lines),
            forward_ms=tuple(forward for _, forward in lines),
            stepped=max(buckets, default=0) >= self.plan.rows[-1],
            looks_up=bool(self.lookup_sources),
            lookup_ms=lookup_ms,
            drafts={source: self._levels(drafter, source) for source in networks},
        )

    def _passes(
        self, drafter: Drafter, context: int
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Milliseconds by rows: of a step without the draft, and of the target's pass in it."""
        policy = _FixedRows(max(self.plan.rows))
        loop = self._loop(drafter, policy)
        loop.begin(self._text(context))
        spent: defaultdict[int, list[float]] = defaultdict(list)
        forward: defaultdict[int, list[float]] = defaultdict(list)
        for turn in range(1 - self._unlike, self.plan.repeats + 1):
            for rows in self.plan.rows:  # in turns, so that a drift of the machine meets all
                policy.rows = rows
                phases = loop.clock.durations_ms(loop.step().marks)
                if turn > 0:
                    spent[rows].append(sum(phases.values()) - phases["draft"])
                    forward[rows].append(phases["verify"])
                self._tick(turn >= 0)
        whole = tuple(statistics.median(spent[rows]) for rows in self.plan.rows)
        return whole, tuple(statistics.median(forward[rows]) for rows in self.plan.rows)

    def _look_ups(self, drafter: Drafter) -> tuple[float, list[str]]:
        """(ms of a step's look-ups, the sources that run a network)."""
        policy = _FixedRows(2)
        policy.rows = 1
        loop = self._loop(drafter, policy)
        loop.begin(self._text(self.plan.contexts[0]))
        spent = []
        for _ in range(self.plan.repeats + 1):
            start = self.now()
            prospects = prospects_of(drafter)
            spent.append(self.now() - start)
            loop.step()
        self.lookup_sources = [each.source for each in prospects if each.known is not None]
        networks = [each.source for each in prospects if each.known is None]
        return statistics.median(spent) if self.lookup_sources else 0.0, networks

    def _levels(self, drafter: Drafter, source: str) -> DraftCost:
        """Milliseconds of a level by its width."""
        policy = _TimedLevels(source, now=self.now, widths=self.plan.widths)
        loop = self._loop(drafter, policy)
        loop.begin(self._text(self.plan.contexts[0]))
        for turn in range(1 - self._unlike, self.plan.repeats + 1):
            for width in self.plan.widths:
                policy.width = width
                loop.step()
            if turn <= 0:
                policy.root.clear()
                policy.below.clear()
        below = {width: statistics.median(spent) for width, spent in sorted(policy.below.items())}
        return DraftCost(
            root_ms=statistics.median(policy.root or [0.0]),
            widths=tuple(below) or (1,),
            level_ms=tuple(below.values()) or (0.0,),
        )

    def _loop(self, drafter: Drafter, policy: TreePolicy) -> Decoding:
        parts = replace(self._engine.components, drafter=drafter, tree=policy)
        engine = Engine(parts, self._engine.settings)
        return engine.decoding(max_new_tokens=self._steps(), clock=self._clock)

    def _steps(self) -> int:
        """Tokens that a run can emit: a pass over a level of nodes gives at most two."""
        turns = max(len(self.plan.rows), len(self.plan.widths))
        return 2 * (self.plan.repeats + 1 + self._unlike) * turns + _LEVELS

    def _text(self, length: int) -> list[int]:
        size = min(_ALPHABET, self._engine.components.target.vocab_size)
        return [(place * place + place // 7) % size for place in range(length)]

    def now(self) -> float:
        """Milliseconds, once the device is done."""
        return 1e3 * self._clock.now()

    def _fitted(self, plan: TimingPlan, capacity: int | None) -> TimingPlan:
        """The plan with contexts that leave room for the run."""
        parts = self._engine.components
        traits = parts.drafter.traits
        limits = [parts.target.gives.max_positions, traits.max_positions, capacity]
        rows = plan.rows[-1] + traits.needs.aux_rows
        most = [limit - self._steps() - 2 * rows for limit in limits if limit is not None]
        room = max(min(most, default=plan.contexts[-1]), 2)
        contexts = tuple(sorted({min(context, room) for context in plan.contexts}))
        return replace(plan, contexts=contexts)


class _SilentDrafter(Drafter):
    """Drafts nothing, while the target still hands over what another drafter needs."""

    def __init__(self, needs: Needs) -> None:
        self.traits = Traits(needs=Needs(taps=needs.taps), drafts=False, laws="logits")

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        return []


class _FixedRows(TreePolicy):
    """Drafts as many rows as `rows` says, all children of the root, decided before any draw."""

    def __init__(self, max_rows: int) -> None:
        super().__init__(depth=1, max_nodes=max(max_rows, 2), proposal="place")
        self.rows = 1

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        count = min(self.rows, budget.rows) - 1
        if count > 0:
            # Ids that every vocabulary has; a repeated one is a dead row, which costs as much.
            ids = torch.arange(count, device=builder.root.tokens.device) % 2
            builder.place(builder.root, ids[None])


class _TimedLevels(TreePolicy):
    """Drafts levels of one width and times each of them; the bare root is verified.

    It decides before any draw.
    """

    def __init__(self, source: str, *, now: Callable[[], float], widths: Sequence[int]) -> None:
        most = 1 + 2 * _LEVELS * max(widths)
        super().__init__(depth=_LEVELS, max_nodes=most, proposal="place")
        self.source = source
        self.width = 1
        self.root: list[float] = []  # ms of the root's level
        self.below: defaultdict[int, list[float]] = defaultdict(list)  # width -> ms of the others
        self._now = now

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        prospects = prospects_of(source)
        expand = next(each.expand for each in prospects if each.source == self.source)
        frontier = builder.root
        for depth in range(_LEVELS):
            start = self._now()
            proposal = widest(expand(frontier))
            if proposal is None:
                break
            width = len(frontier)
            children = builder.extend(frontier, proposal, 2 if depth else self.width)
            spent = self.below[width] if depth else self.root
            spent.append(self._now() - start)
            frontier = children.select(torch.arange(min(self.width, len(children))))
        builder.prune(builder.root.nodes[:0])
