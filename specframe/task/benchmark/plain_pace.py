"""What plain decoding takes here, by a few tokens of it: whether drafting paid in a run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

from specframe.measure.metrics import RunSummary
from specframe.session.engine import Engine
from specframe.task.benchmark.sides import plain_side
from specframe.terminal.payoff import KnowsCosts, payoff

_TOKENS, _LEAST = 10, 4  # plain tokens that are timed, and with how few nothing is said
_CONTEXT = 128  # tokens of the prompt that stand before them, so that reading it takes no time


def payoff_of(engine: Engine, summary: RunSummary, *, prompt: Sequence[int]) -> str:
    """Whether drafting paid in the answers of a run; "" where nothing can be said.

    A tree that plans by costs knows what plain decoding takes. For another one a few tokens are
    decoded plainly behind the run's last prompt, unless passes would have to be captured for it.
    """
    parts, total = engine.components, summary.total
    measured = None
    unknown = not isinstance(parts.tree, KnowsCosts) and parts.runtime.launch.buckets is None
    if unknown and total.num_drafted and not total.synthetic:
        measured = plain_token_ms(engine, prompt)
    return payoff(parts.tree, summary, context=len(prompt), measured_ms=measured)


def plain_token_ms(engine: Engine, prompt: Sequence[int]) -> float | None:
    """The median of a few steps of plain decoding; None where the text ends too early."""
    plain = plain_side("plain", engine).engine
    steps = plain.decoding(max_new_tokens=_TOKENS + 1).run(list(prompt[-_CONTEXT:]))
    stamps = []
    for _ in steps:  # the first is the prefill's
        stamps.append(time.perf_counter())
    spent = [after - before for before, after in pairwise(stamps)]
    return 1e3 * statistics.median(spent) if len(spent) >= _LEAST else None
