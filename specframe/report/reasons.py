"""Why a configuration is as fast as it is: sentences made from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from specframe.report.groups import Group
from specframe.report.numbers import Numbers

_EVEN = 0.02  # ratios nearer to 1 than this are called equal
_REST = ("accept", "commit", "host")


def why(group: Group) -> list[str]:
    """Sentences on one configuration, the most important first."""
    numbers = group.numbers
    if group.is_plain:
        ms = "" if numbers.pass_ms is None else f", {numbers.pass_ms:.1f} ms a token"
        return [f"Plain decoding: one token a pass{ms}."]
    if numbers.acceptance_length is None:
        return ["No verify pass was made, so there is nothing to explain."]
    sentences = [_headline(group), _where_time_goes(numbers), _what_is_accepted(numbers)]
    return [sentence for sentence in (*sentences, _break_even(group)) if sentence]


def versus(first: Group, second: Group) -> str:
    """Why the first is faster or slower than the second: by tokens a pass, or by a pass's cost.

    The factors are over all tokens together, and may differ from a mean over prompts.
    """
    mine, theirs = first.numbers, second.numbers
    speeds = _speeds(first, second)
    lengths = (mine.acceptance_length, theirs.acceptance_length)
    if speeds is None or not lengths[0] or not lengths[1]:
        return ""
    ratio = speeds[0] / speeds[1]
    length = lengths[0] / lengths[1]
    cost = ratio / length  # > 1: its pass is cheaper
    unit, costs = _costs(mine, theirs)
    factors = (
        f"{lengths[0]:.2f} tokens a pass against {lengths[1]:.2f} (factor {length:.2f}), and "
        f"a pass costs {costs[0]:.{unit.digits}f} {unit.name} against {costs[1]:.{unit.digits}f} "
        f"(factor {cost:.2f}), together {ratio:.2f} over all tokens"
    )
    return f"{factors}: {_decides(length, cost)}{_phase(mine, theirs)}."


class _Unit(NamedTuple):
    """The unit of a pass's cost, and the digits that it is printed with."""

    name: str
    digits: int


def _costs(mine: Numbers, theirs: Numbers) -> tuple[_Unit, tuple[float, float]]:
    if mine.pass_cost is not None and theirs.pass_cost is not None:
        return _Unit("plain steps", 2), (mine.pass_cost, theirs.pass_cost)
    return _Unit("ms", 1), (mine.pass_ms or 0.0, theirs.pass_ms or 0.0)


def _speeds(first: Group, second: Group) -> tuple[float, float] | None:
    both = (first.numbers.speedup, second.numbers.speedup)
    if None in both:
        both = (first.numbers.tokens_per_s, second.numbers.tokens_per_s)
    if both[0] is None or both[1] is None:
        return None
    return both[0], both[1]


def _decides(length: float, cost: float) -> str:
    """Which of the two factors makes the difference."""
    if abs(length * cost - 1) < _EVEN:
        return "the two balance" if abs(length - 1) >= _EVEN else "no difference to speak of"
    faster = length * cost > 1
    by_length = abs(log(length)) > abs(log(cost))
    both_matter = min(abs(length - 1), abs(cost - 1)) >= _EVEN
    if both_matter and (length > 1) == (cost > 1):
        return f"both {'help' if faster else 'hurt'}, {_factor(by_length)} more"
    if by_length:
        return "the longer acceptance decides" if faster else "the shorter acceptance decides"
    return "the cheaper pass decides" if faster else "the dearer pass decides"


def _factor(by_length: bool) -> str:
    return "acceptance" if by_length else "the cost of a pass"


def _phase(mine: Numbers, theirs: Numbers) -> str:
    """In which phase their passes differ most; "" where the phases were not measured."""
    unit, costs = _costs(mine, theirs)
    if not mine.shares or not theirs.shares:
        return ""
    gaps = {
        name: (mine.shares[name] * costs[0], theirs.shares[name] * costs[1]) for name in mine.shares
    }
    name, (here, there) = max(gaps.items(), key=lambda item: abs(item[1][0] - item[1][1]))
    if abs(here - there) < _EVEN * max(costs):
        return ""
    return (
        f"; the passes differ most in {name}, {here:.{unit.digits}f} against "
        f"{there:.{unit.digits}f} {unit.name}"
    )


def _headline(group: Group) -> str:
    numbers = group.numbers
    length = f"{numbers.acceptance_length:.2f} tokens a pass"
    if numbers.pass_cost is None:
        return f"{length}, {numbers.pass_ms:.1f} ms a pass: {numbers.tokens_per_s:.1f} tokens/s."
    ratio = numbers.speedup or (numbers.acceptance_length or 0.0) / numbers.pass_cost
    joint = "and" if ratio >= 1 else "but"
    ends = numbers.speedup_ends
    interval = f", {ends[0]:.2f} to {ends[1]:.2f} over prompts" if ends else ""
    apart = (
        ", against a run of drafter=none that was not interleaved"
        if group.plain_is_separate
        else ""
    )
    return (
        f"{length}, {joint} a pass costs {numbers.pass_cost:.2f} plain steps: "
        f"{ratio:.2f} times plain decoding's speed{interval}{apart}."
    )


def _where_time_goes(numbers: Numbers) -> str:
    if not numbers.shares:
        return ""
    cost = numbers.pass_cost
    parts = []
    shares = {name: numbers.shares[name] for name in ("draft", "verify")}
    shares["everything else"] = sum(numbers.shares[name] for name in _REST)
    for name, share in shares.items():
        steps = "" if cost is None else f" ({share * cost:.2f} plain steps)"
        parts.append(f"{name} {100 * share:.0f} %{steps}")
    return f"Of a pass: {', '.join(parts)}."


def _what_is_accepted(numbers: Numbers) -> str:
    if not numbers.rows or numbers.accepted is None:
        return ""
    drafted = numbers.rows - 1
    if drafted <= 0:
        return "It drafted nothing."
    sentence = (
        f"It verifies {numbers.rows:.1f} rows a pass to keep {numbers.accepted:.2f} drafted tokens"
        f" ({100 * numbers.accepted / drafted:.0f} %)"
    )
    return f"{sentence}; {_by_depth(numbers.depths)}." if numbers.depths else f"{sentence}."


def _by_depth(depths: Sequence[tuple[int, int, int]]) -> str:
    """How often the first guess is right, and the next ones once the walk is there."""
    rates = [accepted / reached for _, reached, accepted in depths if reached]
    if not rates:
        return "none was reached"
    text = f"the first level is right {100 * rates[0]:.0f} % of the time"
    if len(rates) > 1:
        deeper = ", ".join(f"{100 * rate:.0f}" for rate in rates[1:5])
        text += f", the next ones, once reached, {deeper} %"
    return text


def _break_even(group: Group) -> str:
    numbers = group.numbers
    cost, length = numbers.pass_cost, numbers.acceptance_length
    if cost is None or length is None or cost <= length:
        return ""
    return (
        f"To break even it would have to emit {cost:.2f} tokens a pass, or a pass would have to "
        f"cost {length:.2f} plain steps."
    )
