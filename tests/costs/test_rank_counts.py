"""What is counted at which depth and rank, by hand."""

from __future__ import annotations

from specframe.costs.rank_counts import RankCounts


def test_denominators_are_of_what_could_be_right() -> None:
    counts = RankCounts(depth=3, top_k=2)
    for ranks, room in (((0, 1, 0), 3), ((0, -1), 3), ((-1,), 3), ((1, 0), 2), ((), 0)):
        counts.add(ranks, room)
    assert counts.reached() == [4, 3, 1]
    assert counts.hits() == [[2, 1], [1, 1], [1, 0]]
    assert counts.table() == [[2 / 4, 1 / 4], [1 / 3, 1 / 3], [1.0, 0.0]]
    assert counts.pooled() == [[4 / 8, 2 / 8]] * 3
    assert counts.counted_length([(0,), (0, 1)]) == (3 + 2 + 1 + 1 + 1) / 5
    assert counts.counted_length([(1,), (1, 0), (0,)]) == (2 + 2 + 1 + 3 + 1) / 5
