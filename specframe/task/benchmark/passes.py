"""Milliseconds of passes by their rows: ours, and those of peers on the same weights."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specframe.costs.ceilings import Ceilings, Weights, measured
from specframe.costs.costing import BusyClock, Costing, Extent
from specframe.session.engine import Engine
from specframe.task.benchmark.compared import PeerSide, WeightsKey, weights_key
from specframe.task.benchmark.peers import Peer, PeerQuestion
from specframe.task.benchmark.sides import Side, plain_side
from specframe.terminal.progress import StepProgress

CONTEXT = 128  # tokens behind which passes are measured
_ROUNDS = 3  # times that each pass is measured, after one that does not count
_ALPHABET = 61  # ids of the tokens that a peer is fed


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Medians on one target and runtime, by rows. forward_ms: of the target's pass; step_ms: of a
    whole step without its draft. peers: forward_ms of each peer that has passes of its own.

    moved: bytes of weights and keys that a pass has to read; copy_bytes_per_s: what a copy moves.
    """

    target: str
    runtime: str
    context: int
    rows: list[int]
    forward_ms: list[float]
    step_ms: list[float]
    peers: dict[str, list[float]] = field(default_factory=dict)
    moved: list[float] | None = None
    copy_bytes_per_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def passes_of(
    sides: Sequence[Side],
    rows: Sequence[int],
    peers: Sequence[tuple[Peer, PeerQuestion, WeightsKey]],
    *,
    capacity: int | None,
) -> list[Passes]:
    """One table for each target and runtime among our sides, without their drafts; peers go to the
    first of their weights."""
    ours = [side for side in sides if not isinstance(side, PeerSide)]
    first = {id(side.engine.parts.target): side for side in reversed(ours)}
    chosen = [side for side in ours if first[id(side.engine.parts.target)] is side]
    engines = [plain_side(side.name, side.engine).engine for side in chosen]
    found, told = [], set[WeightsKey]()
    with StepProgress("passes", total=_ROUNDS * len(engines)) as progress:
        for engine in engines:
            key = weights_key(engine)
            own = [(peer, asked) for peer, asked, of in peers if of == key and key not in told]
            told.add(key)
            found.append(_measured(engine, list(rows), own, (capacity, progress.add)))
    return found


def _measured(
    engine: Engine,
    rows: list[int],
    peers: Sequence[tuple[Peer, PeerQuestion]],
    how: tuple[int | None, Callable[[int], None]],
) -> Passes:
    """how: capacity of the cache, and who is told of every round."""
    capacity, tick = how
    parts = engine.parts
    extent = Extent(rows=tuple(rows), contexts=(CONTEXT,), widths=(1,), repeats=1)
    costing = Costing(engine, extent, capacity=capacity, tick=lambda _: None)
    context = costing.extent.contexts[0]
    runs = _runs(peers, rows, context)
    now = BusyClock(parts.target.device).now
    ours: list[tuple[Sequence[float], Sequence[float]]] = []
    theirs: dict[str, list[list[float]]] = defaultdict(list)
    for _ in range(_ROUNDS):  # in turns, so that a drift of the machine meets all
        costs = costing.table()
        ours.append((costs.forward_ms[0], costs.pass_ms[0]))
        for name, run in runs.items():
            theirs[name].append([_timed(run, size, now) for size in rows])
        tick(1)
    weights = Weights.of(parts.target, parts.cache)
    limits: Ceilings | None = None if weights is None else measured(parts.target, costing.now)
    return Passes(
        target=parts.target.name,
        runtime=type(parts.runtime).__name__.lower(),
        context=context,
        rows=rows,
        forward_ms=_medians([forward for forward, _ in ours]),
        step_ms=_medians([whole for _, whole in ours]),
        peers={name: _medians(found) for name, found in theirs.items()},
        moved=None if weights is None else [weights.of_pass(n, context, 1.0).bytes for n in rows],
        copy_bytes_per_s=None if limits is None else limits.bytes_per_s,
    )


def _runs(
    peers: Sequence[tuple[Peer, PeerQuestion]], rows: Sequence[int], context: int
) -> dict[str, Callable[[Sequence[int]], Any]]:
    """Each peer's pass, run once at every size."""
    found = {}
    for peer, question in peers:
        run = peer.pass_of(question, [place % _ALPHABET for place in range(context)])
        if run is not None:
            found[peer.package] = run
            for size in rows:
                run([place % _ALPHABET for place in range(size)])
    return found


def _timed(run: Callable[[Sequence[int]], Any], size: int, now: Callable[[], float]) -> float:
    """Milliseconds of one pass."""
    tokens = [place % _ALPHABET for place in range(size)]
    start = now()
    run(tokens)
    return 1e3 * (now() - start)


def _medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rounds, strict=True)]
