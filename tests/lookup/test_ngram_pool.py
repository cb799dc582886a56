"""Which n-grams a pool keeps, and in what order it gives them."""

from __future__ import annotations

from specframe.lookup.ngram_pool import NgramPool


def test_a_full_pool_forgets_the_oldest() -> None:
    pool = NgramPool(size=2)
    for ngram in ([1, 2, 3], [1, 4, 5], [2, 9, 9], [1, 2, 3], [1, 6, 7]):
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (2, 3)]
    assert pool.after(2) == [(9, 9)]
    assert pool.after(3) == []


def test_a_corrected_phrase_takes_the_place_of_the_old_one() -> None:
    pool = NgramPool(size=3)
    for ngram in ([1, 2, 3], [1, 4, 5], [1, 6, 7]):
        pool.add(ngram)
    pool.correct(1, {(4, 5): (8, 9), (2, 3): (6, 7)})
    assert pool.after(1) == [(6, 7), (8, 9)]
    pool.correct(2, {(4, 5): (8, 9)})
    assert pool.after(2) == []
