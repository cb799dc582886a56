"""Times of forward passes: those that somebody else calls, and passes of several row counts."""

from __future__ import annotations

import inspect
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from specframe.costs.ceilings import Ceilings, PassWorkload, measure_ceilings
from specframe.costs.step_timing import StepTimer, TimingPlan
from specframe.measure.busy_clock import BusyClock
from specframe.measure.clock import Clock
from specframe.session.engine import Engine
from specframe.task.benchmark.peers import Peer, PeerQuestion
from specframe.terminal.progress import StepProgress

CONTEXT = 128  # tokens behind which passes are measured
_ROUNDS = 3  # times that each pass is measured, after one that does not count
_ALPHABET = 61  # ids of the tokens that a peer is fed


@dataclass
class WatchedForwards:
    """The calls of a forward so far, by the loop's clock: host time on a CPU, events on CUDA."""

    clock: Clock
    marks: list[list[tuple[str, object]]] = field(default_factory=list)

    def seconds(self) -> list[float]:
        """Seconds of each call. Waits for the device, so it is called once everything is done."""
        return [1e-3 * sum(self.clock.durations_ms(call).values()) for call in self.marks]


@contextmanager
def watched_forwards(owner: Any, device: torch.device) -> Iterator[WatchedForwards]:
    """Time every call of `owner.forward` while the block runs; owner is a model or a target."""
    watched = WatchedForwards(Clock(device))
    forward = owner.forward
    hooked = vars(owner).get("forward")  # accelerate puts its own there

    def timed(*args: Any, **kwargs: Any) -> Any:
        clock = Clock(device)
        clock.start()
        try:
            return forward(*args, **kwargs)
        finally:
            clock.mark("verify")
            watched.marks.append(clock.marks)

    # generate() looks at the signature to know what the model takes.
    timed.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    owner.forward = timed
    try:
        yield watched
    finally:
        if hooked is None:
            del owner.forward
        else:
            owner.forward = hooked


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Medians of the times of passes on one target and runtime, by number of rows."""

    target: str
    runtime: str
    context: int  # tokens behind which the passes stand
    rows: list[int]
    forward_ms: list[float]  # of the target's forward
    step_ms: list[float]  # of a whole step without its draft
    # Name of a peer -> forward_ms of its own passes, where it has any.
    peers: dict[str, list[float]] = field(default_factory=dict)
    moved: list[float] | None = None  # bytes of weights and keys that a pass has to read
    copy_bytes_per_s: float | None = None  # what a plain copy moves on this device

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json."""
        return asdict(self)


def pass_times(
    engines: Sequence[tuple[Engine, Sequence[tuple[Peer, PeerQuestion]]]],
    rows: Sequence[int],
    *,
    capacity: int | None,
) -> list[PassTimes]:
    """Time the passes of each engine, which should not draft, in turns with those of its peers.

    capacity: of the cache, in tokens; None for a cache that grows.
    """
    times = []
    with StepProgress("passes", total=_ROUNDS * len(engines)) as progress:
        for engine, peers in engines:
            plan = TimingPlan(rows=tuple(rows), contexts=(CONTEXT,), widths=(1,), repeats=1)
            timer = StepTimer(engine, plan, capacity=capacity, tick=lambda _: None)
            times.append(_measure(engine, timer, peers, progress.add))
    return times


def _measure(
    engine: Engine,
    timer: StepTimer,
    peers: Sequence[tuple[Peer, PeerQuestion]],
    tick: Callable[[int], None],
) -> PassTimes:
    parts, context = engine.components, timer.plan.contexts[0]
    rows = list(timer.plan.rows)
    runs = _peer_runs(peers, rows, context)
    now = BusyClock(parts.target.device).now
    ours: list[tuple[Sequence[float], Sequence[float]]] = []
    theirs: dict[str, list[list[float]]] = defaultdict(list)
    for _ in range(_ROUNDS):  # in turns, so that a drift of the machine meets all
        costs = timer.table()
        ours.append((costs.forward_ms[0], costs.pass_ms[0]))
        for name, run in runs.items():
            theirs[name].append([_timed(run, size, now) for size in rows])
        tick(1)
    workload = PassWorkload.of(parts.target, parts.cache)
    limits: Ceilings | None = None
    if workload is not None:
        limits = measure_ceilings(parts.target, parts.runtime.weights, timer.now)
    return PassTimes(
        target=parts.target.name,
        runtime=type(parts.runtime).__name__.lower(),
        context=context,
        rows=rows,
        forward_ms=_medians([forward for forward, _ in ours]),
        step_ms=_medians([whole for _, whole in ours]),
        peers={name: _medians(rounds) for name, rounds in theirs.items()},
        moved=None if workload is None else [workload.of_pass(n, context, 1.0).bytes for n in rows],
        copy_bytes_per_s=None if limits is None else limits.bytes_per_s,
    )


def _peer_runs(
    peers: Sequence[tuple[Peer, PeerQuestion]], rows: Sequence[int], context: int
) -> dict[str, Callable[[Sequence[int]], Any]]:
    """Each peer's pass by its name, run once at every size."""
    runs = {}
    for peer, question in peers:
        run = peer.pass_of(question, _tokens(context))
        if run is not None:
            runs[peer.package] = run
            for size in rows:
                run(_tokens(size))
    return runs


def _timed(run: Callable[[Sequence[int]], Any], size: int, now: Callable[[], float]) -> float:
    """Milliseconds of one pass."""
    tokens = _tokens(size)
    start = now()
    run(tokens)
    return 1e3 * (now() - start)


def _tokens(count: int) -> list[int]:
    return [place % _ALPHABET for place in range(count)]


def _medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rounds, strict=True)]
