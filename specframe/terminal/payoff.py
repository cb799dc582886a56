"""Says in a sentence whether drafting paid in a run, as far as that is known."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from specframe.measure.metrics import RunSummary
from specframe.planning.cost_table import CostTable

_NO_DRAFT = (
    "Nothing was drafted, since by the costs of this machine no draft was expected to pay: this is "
    "plain decoding."
)
_NONE_ACCEPTED = (
    "None of {} drafted tokens was accepted, so drafting won nothing here: a pass of more rows "
    "only takes longer."
)
_EVEN = 0.03  # costs are measured in a few seconds: nearer to 1 than this is no difference


@runtime_checkable
class KnowsCosts(Protocol):
    """A tree policy that was given what steps cost on this machine."""

    costs: CostTable


def payoff(
    policy: object, summary: RunSummary, *, context: int, measured_ms: float | None = None
) -> str:
    """What a token took, beside the step of plain decoding that the policy's costs hold.

    policy: of the run's trees; summary: of its answers; context: tokens in the cache;
    measured_ms: of a step of plain decoding, for a policy that knows no costs.
    "" where there was nothing to draft with, or the drafter was told the text.
    """
    total = summary.total
    known = isinstance(policy, KnowsCosts) and len(policy.costs.rows) > 1
    if total.synthetic or not total.num_steps or not (known or total.num_drafted):
        return ""
    if not total.num_drafted:
        return _NO_DRAFT
    if not total.num_accepted:
        return _NONE_ACCEPTED.format(total.num_drafted)
    # Costs hold no text and no printing, which plain decoding would have as well.
    token_ms = (1e3 * total.decode_s - total.phase_ms.get("host", 0.0)) / total.num_step_tokens
    length = f"{total.acceptance_length:.2f} tokens a pass"
    if isinstance(policy, KnowsCosts):
        plain_ms, source = policy.costs.step_ms(1, context), "by the costs of this machine"
    elif measured_ms is not None:
        plain_ms, source = measured_ms, "timed after the last answer"
    else:
        return (
            f"It emitted {length}, {token_ms:.1f} ms a token. Whether that is faster than plain "
            "decoding was not measured: the same command with task=benchmark measures it."
        )
    if plain_ms / token_ms > (1 + _EVEN) * (total.acceptance_length or 1):
        return _unknown(length, token_ms, plain_ms)
    return (
        f"{_verdict(plain_ms / token_ms)}: a token took {token_ms:.1f} ms at {length}, a step of "
        f"plain decoding {plain_ms:.1f} ms ({source}). task=benchmark measures both side by side."
    )


def _unknown(length: str, token_ms: float, plain_ms: float) -> str:
    """For a speed above the tokens of a pass, since no pass is cheaper than a plain step."""
    return (
        f"It emitted {length}, {token_ms:.1f} ms a token; the machine was slower when plain "
        f"decoding was timed ({plain_ms:.1f} ms a step), so whether drafting paid is not known: "
        "task=benchmark measures both side by side."
    )


def _verdict(ratio: float) -> str:
    """What a speed over plain decoding means."""
    if abs(ratio - 1) < _EVEN:
        return "About as fast as plain decoding"
    paid = "Drafting paid" if ratio > 1 else "Drafting did not pay here"
    return f"{paid}, about {ratio:.2f} times plain decoding"
