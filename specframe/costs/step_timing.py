"""Measures what the steps of an engine cost: passes by rows, drafts by width, look-ups."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from specframe.drafter.base import Drafter
from specframe.drafting.builder import TreeBuilder
from specframe.loop import Decoding
from specframe.measure.clock import Clock
from specframe.planning.cost_table import CostTable, DraftCost
from specframe.session.engine import Engine
from specframe.session.stopping import StopConfig
from specframe.tree.base import Source, TreePolicy, widest
from specframe.types import Budget, Frontier, Needs, Proposal

_ALPHABET = 61  # ids of the text that is measured on: few, so that look-ups find something
_LEVELS = 3  # of a draft that is timed


@dataclass(frozen=True, kw_only=True)
class TimingPlan:
    """How much is measured: a pass of each of `rows` (from 1 on) at each of `contexts` tokens,
    levels of `widths` nodes, all `repeats` times, of which medians are taken."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    widths: tuple[int, ...]
    repeats: int

    @property
    def num_steps(self) -> int:
        """Passes over rows, those before the count included."""
        return len(self.contexts) * len(self.rows) * (self.repeats + 1)


def row_counts(most: int, buckets: Sequence[int] | None) -> tuple[int, ...]:
    """1, 2, 4, ... up to the first that holds `most` rows, and from 2 on the sizes half way between
    (kernels of 3 rows may take longer than those of 4); where passes are padded, to what."""
    found, size = [1], 1
    while size < most:
        size *= 2
        found += [size * 3 // 4, size] if size > 2 else [size]
    padded = [one for one in buckets or () if one < size]
    return tuple(sorted({1, *padded, size})) if padded else tuple(found)


class BusyClock(Clock):
    """Waits for the device at every stamp. Where one thread of a CPU computes, its own time counts,
    so that what else runs on the machine does not; else the time that passes does."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, synchronise=True)
        self._device = device
        self._alone = device.type == "cpu" and torch.get_num_threads() == 1

    def now(self) -> float:
        """Seconds."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.thread_time() if self._alone else time.perf_counter()

    def _stamp(self) -> object:
        return self.now()


class StepTimer:
    """Times the steps of an engine. capacity: of its cache, None for no limit; tick(n): n more of
    the extent's steps are done. looked_up: the sources that look up, once there is a table."""

    def __init__(
        self,
        engine: Engine,
        extent: TimingPlan,
        *,
        capacity: int | None,
        tick: Callable[[int], None],
    ) -> None:
        never = StopConfig(eos=[], strings=None, criteria=None)
        self._engine = Engine(engine.parts, replace(engine.settings, stop=never))
        self._device = engine.parts.target.device
        self._clock = BusyClock(self._device)
        self.looked_up: list[str] = []
        self._tick = tick
        self._unlike = engine.parts.runtime.unlike  # of these, no time is taken
        self.extent = extent
        self.extent = self._fitted(extent, capacity)

    @torch.inference_mode()
    def table(self) -> CostTable:
        """Everything but what guesses are worth."""
        drafter = self._engine.parts.drafter
        silent = _Silent(drafter.needs)
        lines = [self._passes(silent, context) for context in self.extent.contexts]
        lookup_ms, networks = self._look_ups(drafter)
        buckets = self._engine.parts.runtime.buckets
        return CostTable(
            rows=self.extent.rows,
            contexts=self.extent.contexts,
            pass_ms=tuple(whole for whole, _ in lines),
            forward_ms=tuple(forward for _, forward in lines),
            stepped=bool(buckets) and max(buckets or [0]) >= self.extent.rows[-1],
            looks_up=bool(self.looked_up),
            lookup_ms=lookup_ms,
            drafts={source: self._levels(drafter, source) for source in networks},
        )

    def _passes(
        self, drafter: Drafter, context: int
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Milliseconds by rows: of a step without the draft, and of the target's pass in it."""
        policy = _Fixed(max(self.extent.rows))
        loop = self._loop(drafter, policy)
        loop.begin(self._text(context))
        spent: defaultdict[int, list[float]] = defaultdict(list)
        forward: defaultdict[int, list[float]] = defaultdict(list)
        for turn in range(1 - self._unlike, self.extent.repeats + 1):
            for rows in self.extent.rows:  # in turns, so that a drift of the machine meets all
                policy.rows = rows
                phases = loop.clock.durations_ms(loop.step().marks)
                if turn > 0:
                    spent[rows].append(sum(phases.values()) - phases["draft"])
                    forward[rows].append(phases["verify"])
                self._tick(turn >= 0)
        whole = tuple(statistics.median(spent[rows]) for rows in self.extent.rows)
        return whole, tuple(statistics.median(forward[rows]) for rows in self.extent.rows)

    def _look_ups(self, drafter: Drafter) -> tuple[float, list[str]]:
        """(ms of a step's look-ups, the sources that run a network)."""
        policy = _Fixed(2)
        policy.rows = 1
        loop = self._loop(drafter, policy)
        loop.begin(self._text(self.extent.contexts[0]))
        spent = []
        for _ in range(self.extent.repeats + 1):
            start = self.now()
            prospects = drafter.prospects()
            spent.append(self.now() - start)
            loop.step()
        self.looked_up = [one.source for one in prospects if one.known is not None]
        networks = [one.source for one in prospects if one.known is None]
        return statistics.median(spent) if self.looked_up else 0.0, networks

    def _levels(self, drafter: Drafter, source: str) -> DraftCost:
        """Milliseconds of a level by its width."""
        policy = _Levels(source, now=self.now, widths=self.extent.widths)
        loop = self._loop(drafter, policy)
        loop.begin(self._text(self.extent.contexts[0]))
        for turn in range(1 - self._unlike, self.extent.repeats + 1):
            for width in self.extent.widths:
                policy.width = width
                loop.step()
            if turn <= 0:
                policy.root.clear()
                policy.below.clear()
        below = {width: statistics.median(found) for width, found in sorted(policy.below.items())}
        return DraftCost(
            root_ms=statistics.median(policy.root or [0.0]),
            widths=tuple(below) or (1,),
            level_ms=tuple(below.values()) or (0.0,),
        )

    def _loop(self, drafter: Drafter, policy: TreePolicy) -> Decoding:
        parts = replace(self._engine.parts, drafter=drafter, tree=policy)
        loop = Engine(parts, self._engine.settings).decoding(max_new_tokens=self._steps())
        loop.clock = self._clock
        return loop

    def _steps(self) -> int:
        """Tokens that a run can emit: a pass over a level of nodes gives at most two."""
        turns = max(len(self.extent.rows), len(self.extent.widths))
        return 2 * (self.extent.repeats + 1 + self._unlike) * turns + _LEVELS

    def _text(self, length: int) -> list[int]:
        size = min(_ALPHABET, self._engine.parts.target.vocab_size)
        return [(place * place + place // 7) % size for place in range(length)]

    def now(self) -> float:
        """Milliseconds, once the device is done."""
        return 1e3 * self._clock.now()

    def _fitted(self, extent: TimingPlan, capacity: int | None) -> TimingPlan:
        """Contexts that leave room for the run."""
        parts = self._engine.parts
        limits = [parts.target.gives.max_positions, parts.drafter.max_positions, capacity]
        rows = extent.rows[-1] + parts.drafter.needs.aux_rows
        most = [limit - self._steps() - 2 * rows for limit in limits if limit is not None]
        room = max(min(most, default=extent.contexts[-1]), 2)
        contexts = tuple(sorted({min(context, room) for context in extent.contexts}))
        return replace(extent, contexts=contexts)


class _Silent(Drafter):
    """Drafts nothing; the target hands over what another drafter needs."""

    drafts: ClassVar[bool] = False
    gives_laws: ClassVar[bool] = True

    def __init__(self, needs: Needs) -> None:
        self.needs = Needs(taps=needs.taps)

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        return []


class _Fixed(TreePolicy):
    """As many rows as it is told, all children of the root, decided before any draw."""

    def __init__(self, most: int) -> None:
        super().__init__(depth=1, max_nodes=max(most, 2), proposal="place")
        self.rows = 1

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        count = min(self.rows, budget.rows) - 1
        if count > 0:
            # Ids that every vocabulary has; a repeated one is a dead row, which costs as much.
            ids = torch.arange(count, device=builder.root.tokens.device) % 2
            builder.place(builder.root, ids[None])


class _Levels(TreePolicy):
    """Drafts levels of a width and times each, decides before any draw; the bare root is verified.

    root: ms of the root's level; below: width -> ms of the others.
    """

    def __init__(self, source: str, *, now: Callable[[], float], widths: Sequence[int]) -> None:
        most = 1 + 2 * _LEVELS * max(widths)
        super().__init__(depth=_LEVELS, max_nodes=most, proposal="place")
        self.source = source
        self.width = 1
        self.root: list[float] = []
        self.below: defaultdict[int, list[float]] = defaultdict(list)
        self._now = now

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        expand = next(one.expand for one in source.prospects() if one.source == self.source)
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
