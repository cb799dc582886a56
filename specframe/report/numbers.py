"""The numbers of some answers, each under the name that metrics and benchmarks give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specframe.measure.bootstrap import Bootstrap, pooled, speedup
from specframe.report.run_answers import PHASES, ReportedAnswer, add_costs, add_depths

Ends = tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """One run, or one category of it.

    acceptance_length: tokens a pass, bonus included. speedup: over plain decoding in the same
    process, None where it was not measured. plain_ms: of a token of plain decoding; pass_ms: of a
    verify pass with its draft. rows: verified rows a pass, kept: drafted tokens a pass that were
    accepted. shares: of a pass's time by phase, synchronised: by a clock that waited for the
    device. depths: (drafted, reached, accepted). *_ends: of the interval over prompts.
    """

    num_prompts: int
    acceptance_length: float | None
    tokens_per_s: float | None
    pass_ms: float | None
    rows: float | None
    kept: float | None
    plain_ms: float | None = None
    speedup: float | None = None
    acceptance_ends: Ends = None
    speedup_ends: Ends = None
    shares: dict[str, float] = field(default_factory=dict)
    synchronised: bool = False
    depths: Sequence[tuple[int, int, int]] = ()

    @property
    def pass_cost(self) -> float | None:
        """What a pass costs in steps of plain decoding: speedup = acceptance_length / pass_cost."""
        if self.pass_ms is None or not self.plain_ms:
            return None
        return self.pass_ms / self.plain_ms

    @property
    def efficiency(self) -> float | None:
        """speedup / acceptance_length: how much of the ideal is left."""
        if self.speedup is None or not self.acceptance_length:
            return None
        return self.speedup / self.acceptance_length


def measure(
    answers: Sequence[ReportedAnswer],
    *,
    split: dict[str, float] | None,
    bootstrap: Bootstrap | None,
) -> Numbers:
    """Pool the answers. split: milliseconds by phase of a synchronising run, if there was one;
    bootstrap: for the intervals, None leaves them out."""
    mine = [one.method for one in answers]
    total = add_costs(mine)
    bases = [one.base for one in answers if one.base is not None and one.base.tokens]
    phases = {phase: sum(one.phases_ms.get(phase, 0.0) for one in answers) for phase in PHASES}
    ratio: dict[str, Any] = {}
    if bases and len(bases) == len(answers):
        base = add_costs(bases)
        ratio["plain_ms"] = 1e3 * base.seconds / base.tokens
        ratio["speedup"] = _ratio(total.tokens * base.seconds, total.seconds * base.tokens)
    return Numbers(
        num_prompts=len(answers),
        acceptance_length=_ratio(total.tokens, total.steps),
        tokens_per_s=_ratio(total.tokens, total.seconds),
        pass_ms=_ratio(1e3 * total.seconds, total.steps),
        rows=_ratio(total.rows, total.steps),
        kept=_ratio(total.accepted, total.steps),
        **ratio,
        **_ends(answers, bootstrap),
        shares=_shares(split or phases),
        synchronised=split is not None,
        depths=add_depths([one.depths for one in answers]),
    )


def by_category(answers: Sequence[ReportedAnswer]) -> dict[str, Numbers]:
    """The same of each category, without intervals; empty if there are no categories."""
    names = list(dict.fromkeys(one.category for one in answers if one.category))
    return {
        name: measure([one for one in answers if one.category == name], split=None, bootstrap=None)
        for name in names
    }


def _ends(answers: Sequence[ReportedAnswer], bootstrap: Bootstrap | None) -> dict[str, Any]:
    at_all = [one for one in answers if one.method.steps]
    if bootstrap is None or not at_all:
        return {}
    tokens = [float(one.method.tokens) for one in at_all]
    steps = [float(one.method.steps) for one in at_all]
    found: dict[str, Any] = {"acceptance_ends": bootstrap.interval(pooled, [tokens, steps])}
    bases = [one.base for one in at_all if one.base is not None and one.base.tokens]
    if len(bases) == len(at_all):
        columns = [
            tokens,
            [one.method.seconds for one in at_all],
            [float(one.tokens) for one in bases],
            [one.seconds for one in bases],
        ]
        found["speedup_ends"] = bootstrap.interval(speedup, columns)
    return found


def _shares(phases: dict[str, float]) -> dict[str, float]:
    """Of the time of passes: prefill is not among them."""
    held = {phase: phases.get(phase, 0.0) for phase in PHASES}
    total = sum(held.values())
    return {phase: spent / total for phase, spent in held.items()} if total else {}


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None
