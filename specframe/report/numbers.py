"""The numbers of some answers, under the names that metrics and benchmarks give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specframe.measure.bootstrap import Bootstrap, pooled, speedup
from specframe.measure.clock import PHASES
from specframe.report.run_answers import ReportedAnswer, add_costs, add_depths

Ends = tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers of a run, of several, or of one category. None is what was not measured."""

    num_prompts: int
    acceptance_length: float | None  # tokens a pass, bonus included
    tokens_per_s: float | None
    pass_ms: float | None  # of a verify pass with its draft
    rows: float | None  # verified rows a pass, root included
    accepted: float | None  # drafted tokens a pass that were accepted
    plain_ms: float | None = None  # of a token of plain decoding
    speedup: float | None = None  # over plain decoding in the same process
    acceptance_ends: Ends = None  # of the interval of acceptance_length over prompts
    speedup_ends: Ends = None  # of the interval of speedup over prompts
    shares: dict[str, float] = field(default_factory=dict)  # phase -> share of a pass's time
    synchronised: bool = False  # whether the shares are by a clock that waited for the device
    depths: Sequence[tuple[int, int, int]] = ()  # (drafted, reached, accepted), from depth 1 on

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
    """The numbers of some answers together.

    split: milliseconds by phase of a run with a clock that waits for the device, if there was one;
    bootstrap: for the intervals, which None leaves out.
    """
    mine = [answer.method for answer in answers]
    total = add_costs(mine)
    bases = [answer.base for answer in answers if answer.base is not None and answer.base.tokens]
    phases = {
        phase: sum(answer.phases_ms.get(phase, 0.0) for answer in answers) for phase in PHASES
    }
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
        accepted=_ratio(total.accepted, total.steps),
        **ratio,
        **_ends(answers, bootstrap),
        shares=_shares(split or phases),
        synchronised=split is not None,
        depths=add_depths([answer.depths for answer in answers]),
    )


def by_category(answers: Sequence[ReportedAnswer]) -> dict[str, Numbers]:
    """The numbers of each category, without intervals; {} if there are no categories."""
    names = list(dict.fromkeys(answer.category for answer in answers if answer.category))
    return {
        name: measure(
            [answer for answer in answers if answer.category == name], split=None, bootstrap=None
        )
        for name in names
    }


def _ends(answers: Sequence[ReportedAnswer], bootstrap: Bootstrap | None) -> dict[str, Any]:
    stepped = [answer for answer in answers if answer.method.steps]
    if bootstrap is None or not stepped:
        return {}
    tokens = [float(answer.method.tokens) for answer in stepped]
    steps = [float(answer.method.steps) for answer in stepped]
    ends: dict[str, Any] = {"acceptance_ends": bootstrap.interval(pooled, [tokens, steps])}
    bases = [answer.base for answer in stepped if answer.base is not None and answer.base.tokens]
    if len(bases) == len(stepped):
        columns = [
            tokens,
            [answer.method.seconds for answer in stepped],
            [float(answer.tokens) for answer in bases],
            [answer.seconds for answer in bases],
        ]
        ends["speedup_ends"] = bootstrap.interval(speedup, columns)
    return ends


def _shares(phases: dict[str, float]) -> dict[str, float]:
    """Shares of the time of passes, prefill left out."""
    times = {phase: phases.get(phase, 0.0) for phase in PHASES}
    total = sum(times.values())
    return {phase: spent / total for phase, spent in times.items()} if total else {}


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None
