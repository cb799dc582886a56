"""A table of costs: lines between what was measured, and nothing but a table is read as one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specframe.planning.cost_table import CostTable, DraftCost

TABLE = CostTable(
    rows=(1, 2, 8),
    contexts=(100, 300),
    pass_ms=((10.0, 12.0, 30.0), (20.0, 24.0, 60.0)),
    drafts={"net": DraftCost(root_ms=5.0, widths=(1, 5), level_ms=(2.0, 4.0))},
    right={"net": ((0.5, 0.25), (0.5, 0.0))},
)


@pytest.mark.parametrize(
    ("rows", "context", "ms"),
    [(1, 100, 10), (2, 100, 12), (5, 100, 21), (14, 100, 48), (1, 200, 15), (5, 300, 42)],
)
def test_a_step_lies_on_straight_lines(rows: int, context: int, ms: float) -> None:
    assert TABLE.step_ms(rows, context) == pytest.approx(ms)


def test_before_the_first_context_nothing_gets_cheaper_than_what_was_seen() -> None:
    assert TABLE.step_ms(1, 0) == pytest.approx(10.0)
    assert TABLE.step_ms(1, 400) == pytest.approx(25.0)


def test_padded_passes_cost_what_the_next_size_costs() -> None:
    padded = CostTable(rows=(1, 4, 16), contexts=(10,), pass_ms=((1.0, 2.0, 5.0),), stepped=True)
    found = [padded.step_ms(rows, 10) for rows in (1, 2, 4, 5, 16, 20)]
    assert found == [1.0, 2.0, 2.0, 5.0, 5.0, 5.0]


def test_a_draft_is_its_root_and_its_levels() -> None:
    assert TABLE.draft_ms("net", []) == 0.0
    assert TABLE.draft_ms("net", [1]) == 5.0
    assert TABLE.draft_ms("net", [1, 1, 3]) == pytest.approx(5 + 2 + 3)
    assert TABLE.draft_ms("another", [1, 2]) == 0.0


def test_it_comes_back_from_a_file() -> None:
    held = json.loads(json.dumps(TABLE.as_dict()))
    assert CostTable.of(held) == TABLE


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [2, 4, 8]},
        {"rows": [1, 8, 2]},
        {"pass_ms": [[1.0, 2.0, 3.0]]},
        {"pass_ms": [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]},
        {"drafts": {"net": {"root_ms": 1.0}}},
        {"contexts": "long"},
    ],
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a table of costs"):
        CostTable.of(TABLE.as_dict() | change)
    with pytest.raises(ValueError, match="not a table of costs"):
        CostTable.of(None)


def test_a_draft_cost_without_levels() -> None:
    assert DraftCost(root_ms=1.0, widths=(1,), level_ms=(0.0,)).ms([1, 4, 4]) == 1.0
