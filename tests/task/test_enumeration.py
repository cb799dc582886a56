"""The enumerator visits every branch once, with its probability; some draws it must refuse."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from specframe.law.checked_streams import ReusedDraw
from specframe.task.certify.enumeration import (
    Enumerator,
    TooManyBranches,
    branches,
    exact_law,
    max_error,
    sequence_law,
    total_variation,
)
from specframe.types import How
from tests.small_models import Composition, lm_of, sampling_config, toy, tree_of

YES = torch.ones(1, dtype=torch.bool)


def walk(run, limit: int = 1000):  # type: ignore[no-untyped-def]
    return list(branches(run, max_branches=limit))


def test_draws_multiply_and_sum_to_one() -> None:
    probs = torch.tensor([[0.2, 0.0, 0.8]], dtype=torch.float64)

    def run(rng: Enumerator) -> tuple[int, int, bool]:
        first = int(rng.categorical("draft", probs, (0,), YES))
        second = int(rng.target(3 * probs, 0, YES))
        return first, second, bool(rng.coin(torch.tensor(0.25), (0,), YES))

    found = walk(run)
    assert [outcome for outcome, _ in found] == [
        (a, b, c) for a, b, c in itertools.product((0, 2), (0, 2), (False, True))
    ]
    assert math.fsum(p for _, p in found) == pytest.approx(1, abs=1e-15)
    assert dict(found)[(2, 2, True)] == pytest.approx(0.8 * 0.8 * 0.25)


def test_batched_rows_branch_for_themselves_and_idle_rows_do_not() -> None:
    probs = torch.full((3, 2), 0.5)
    where = torch.tensor([True, False, True])

    def run(rng: Enumerator) -> list[int]:
        return rng.categorical("draft", probs, (0, torch.arange(3)), where).tolist()

    assert [outcome for outcome, _ in walk(run)] == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]


def test_later_draws_may_depend_on_earlier_ones() -> None:
    def run(rng: Enumerator) -> tuple[int, ...]:
        tosses = []
        while len(tosses) < 3 and rng.coin(torch.tensor([0.5]), (len(tosses),), YES):
            tosses.append(1)
        return tuple(tosses)

    assert dict(walk(run)) == {(): 0.5, (1,): 0.25, (1, 1): 0.125, (1, 1, 1): 0.125}


def test_certain_coins_do_not_branch() -> None:
    for probability in (0.0, 1.0):
        coin = torch.tensor([probability])
        found = walk(lambda rng, coin=coin: bool(rng.coin(coin, (0,), YES)))
        assert found == [(bool(probability), 1.0)]


def test_a_limit_of_branches_is_kept() -> None:
    with pytest.raises(TooManyBranches, match="more than 3 branches"):
        walk(lambda rng: rng.categorical("draft", torch.ones(1, 4), (0,), YES), limit=3)
    assert len(walk(lambda rng: rng.target(torch.ones(1, 4), 0, YES), limit=4)) == 4


def test_what_cannot_be_enumerated_is_refused() -> None:
    rng = Enumerator([])
    with pytest.raises(ValueError, match="coupled"):
        rng.coupled(torch.ones(1, 2), None, 0, 1)
    with pytest.raises(ValueError, match="raw uniforms"):
        rng.uniform("accept", 0)
    with pytest.raises(ValueError, match="sums to"):
        rng.categorical("draft", torch.tensor([[math.nan, 1.0]]), (0,), YES)


def test_counters_that_come_twice_are_refused() -> None:
    """Answers of the enumerator are independent; the same coin tossed again is not."""
    rng = Enumerator([])
    half = torch.tensor([0.5])
    rng.coin(half, (4, 0), YES)
    rng.categorical("accept", torch.ones(1, 2), (4, -1), YES)
    rng.categorical("draft", torch.ones(1, 2), (4, 0), YES)  # another stream
    rng.coin(half, (4, 0), ~YES)  # nobody looks at it
    rng.coin(half, (torch.tensor(4), torch.tensor([1])), YES)
    with pytest.raises(ReusedDraw, match=r"accept stream .* counters \(4, 0\)"):
        rng.coin(half, (torch.tensor(4), torch.tensor([0])), YES)
    with pytest.raises(ReusedDraw, match=r"accept stream .* counters \(4, -1\)"):
        rng.coin(half, (4, -1), YES)
    twice = torch.tensor([6, 7, 7])
    with pytest.raises(ReusedDraw, match=r"draft stream .* counters \(3, 7\)"):
        rng.categorical("draft", torch.ones(3, 2), (3, twice), torch.ones(3, dtype=torch.bool))
    rng.target(torch.ones(2, 2), 4, torch.ones(2, dtype=torch.bool))  # rows share their noise
    rng.target(torch.ones(1, 2), 5, YES)
    with pytest.raises(ReusedDraw, match=r"target stream .* counters \(4,\)"):
        rng.target(torch.ones(1, 2), 4, YES)
    inner = rng.beside()
    inner.coin(half, (4, 0), YES)
    assert rng.num_draws == 8
    with pytest.raises(ReusedDraw):
        inner.coin(half, (4, 0), YES)
    inner.roll_back()
    inner.coin(half, (4, 0), YES)
    assert (rng.num_draws, rng.probability) == (9, 0.5**9)


@pytest.mark.parametrize("how", ["place", "iid"])
def test_probabilities_of_a_decode_sum_to_one(how: How) -> None:
    target = toy(vocab_size=3)
    engine = Composition(
        target=target,
        drafter=lm_of(toy(blend=0.5, vocab_size=3), target),
        tree=tree_of("chain", how),
        how=how,
        sampling=sampling_config(1.0),
    ).engine()
    law, count = sequence_law(engine, [0, 1], length=3, max_branches=500)
    assert math.fsum(law.values()) == pytest.approx(1, abs=1e-12)
    assert len(law) == 27
    assert count == (27 if how == "place" else 81)


def test_the_exact_law_is_the_product_of_the_table() -> None:
    target = toy(vocab_size=3)
    made = Composition(target=target, sampling=sampling_config(1.0)).decoding(4)
    made.begin([0, 1])
    law = exact_law(target, made.lane.sampling, [0, 1], length=2)
    table = target.table.exp()
    assert law[(2, 0)] == pytest.approx(float(table[0, 1, 2] * table[1, 2, 0]), abs=1e-15)


def test_distances_of_laws() -> None:
    one, other = {(0,): 0.5, (1,): 0.5}, {(0,): 0.25, (2,): 0.75}
    assert max_error(one, other) == 0.75
    assert total_variation(one, other) == 0.75
    assert total_variation(one, one) == 0
