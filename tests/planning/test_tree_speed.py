"""The fastest tree against every tree there is, on tables small enough to try each."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from specframe.planning.cost_table import CostTable, DraftCost
from specframe.planning.rank_paths import RankPath, expected_length
from specframe.planning.tree_speed import TreeSpeeds, level_widths
from tests.planning.test_rank_paths import is_closed, table, trees

DEPTH, WIDTH, ROWS = 3, 2, 7


def costs(seed: int) -> CostTable:
    """Passes whose time jumps about, and levels that cost the same for every width."""
    draw = random.Random(seed)
    steps = [draw.uniform(0.0, draw.choice([0.3, 1.5])) for _ in range(ROWS)]
    line = tuple(2.0 + sum(steps[:row]) for row in range(ROWS))
    level = draw.uniform(0.0, 0.5)
    return CostTable(
        rows=tuple(range(1, ROWS + 1)),
        contexts=(8,),
        pass_ms=(line,),
        drafts={"net": DraftCost(root_ms=2 * level, widths=(1,), level_ms=(level,))},
    )


def every(closed: bool) -> Iterator[list[RankPath]]:
    yield []
    for size in range(1, ROWS):
        for tree in trees(DEPTH, WIDTH, size):
            if not closed or is_closed(tree):
                yield sorted(tree)


ALL = {closed: list(every(closed)) for closed in (False, True)}


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_fastest_of_all_trees(seed: int, closed: bool) -> None:
    shares, priced = table(seed, depth=DEPTH, width=WIDTH, ranked=not closed), costs(seed)

    def speed(paths: list[RankPath]) -> float:
        ms = priced.step_ms(1 + len(paths), 8) + priced.draft_ms("net", level_widths(paths))
        return expected_length(shares, paths) / ms

    best = max(ALL[closed], key=speed)
    speeds = TreeSpeeds(costs=priced, source="net", right=shares, context=8, closed=closed)
    made = speeds.fastest(rows=ROWS, depth=DEPTH)
    assert made.speed == pytest.approx(speed(best), rel=1e-12)
    assert made.speed == pytest.approx(speed(list(made.paths)), rel=1e-12)
    assert not closed or is_closed(set(made.paths))


def test_the_seeds_differ() -> None:
    """Some tables call for nothing, others for trees of several sizes."""
    sizes = set()
    for seed in range(12):
        shares = table(seed, depth=DEPTH, width=WIDTH, ranked=True)
        speeds = TreeSpeeds(costs=costs(seed), source="net", right=shares, context=8, closed=False)
        sizes.add(speeds.fastest(rows=ROWS, depth=DEPTH).rows)
    assert 1 in sizes
    assert len(sizes) >= 4


def test_nothing_is_drafted_where_a_row_costs_a_pass() -> None:
    dear = CostTable(rows=(1, 2), contexts=(8,), pass_ms=((1.0, 2.0),))
    sure = TreeSpeeds(costs=dear, source="net", right=[[0.99, 0.01]] * 4, context=8, closed=False)
    assert sure.fastest(rows=16, depth=4).paths == ()


def test_where_rows_are_free_all_are_taken() -> None:
    free = CostTable(rows=(1, 2), contexts=(8,), pass_ms=((1.0, 1.0),))
    speeds = TreeSpeeds(costs=free, source="net", right=[[0.3, 0.1]] * 4, context=8, closed=True)
    assert speeds.fastest(rows=9, depth=4).rows == 9


def test_auxiliary_rows_are_in_every_pass() -> None:
    jump = CostTable(rows=(1, 4, 5), contexts=(8,), pass_ms=((1.0, 1.0, 9.0),))
    for aux_rows, rows in ((0, 4), (2, 2), (3, 1)):
        speeds = TreeSpeeds(
            costs=jump,
            source="net",
            right=[[0.5, 0.2, 0.1]],
            context=8,
            closed=False,
            aux_rows=aux_rows,
        )
        assert speeds.fastest(rows=8, depth=1).rows == rows


def test_widths_of_levels() -> None:
    assert level_widths([]) == []
    assert level_widths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)]) == [1, 2, 1]
