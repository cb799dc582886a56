"""What became of each node, by hand."""

from __future__ import annotations

from specframe.tracing.node_outcomes import StepOutcome, node_outcomes


def test_every_row_has_its_outcome() -> None:
    """0 - 1 - 3 - 4 was accepted, a stop cut 4; 2 and 5 are siblings of accepted rows."""
    step = StepOutcome(
        parents=[-1, 0, 0, 1, 3, 1, 2],
        path=[1, 3, 4, -1],
        num_accepted=2,
        refused={5: "the target drew another token"},
    )
    assert node_outcomes(step) == [
        None,
        "accepted",
        "refused",
        "accepted",
        "cut by stop",
        "the target drew another token",
        "not reached",
    ]
