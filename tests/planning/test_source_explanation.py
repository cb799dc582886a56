"""What a table of costs says in words."""

from __future__ import annotations

from specframe.planning.cost_table import CostTable
from specframe.planning.lookup_chances import LookupChances
from specframe.planning.source_explanation import explain_sources
from specframe.types import Budget


def test_costs_are_said_in_a_sentence() -> None:
    costs = CostTable(rows=(1, 2, 8), contexts=(256,), pass_ms=((40.2, 41.8, 60.3),), looks_up=True)
    chances = LookupChances([0.9], weight=8)
    said = explain_sources(costs, chances, room=Budget(rows=8, depth=4), closed=False, margin=0.1)
    clauses = said.split("; ")
    assert clauses[0] == "a step of plain decoding takes 40.2 ms"
    assert clauses[1] == "a step takes 1.04 times as long with 2 rows, 1.50 with 8"
    assert clauses[2].startswith("what is looked up is drafted from 1 matched token on")
