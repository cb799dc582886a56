"""Batches: masks by hand, and an order that is a function of the seed and the step."""

from __future__ import annotations

from pathlib import Path

import torch

from specframe.training.batches import BatchOrder, StepLoader, collate
from specframe.training.feature_cache import FeatureCache, FeatureReader
from specframe.training.samples import TrainingSample
from specframe.training.unroll import UnrollWindow
from tests.training.small_courses import samples, small_target


def features(folder: Path, made: list[TrainingSample]) -> FeatureCache:
    tapped = FeatureReader(target=small_target(), taps=("final_postnorm",), dtype=torch.float64)
    return FeatureCache(tapped, made, width=32, folder=folder, max_bytes=0, identity=None)


def sample(tokens: list[int], start: int) -> TrainingSample:
    return TrainingSample(id="x", category="c", tokens=torch.tensor(tokens), start=start)


def test_masks_by_hand(tmp_path: Path) -> None:
    made = [sample([10, 11, 12, 13, 14, 15], start=3), sample([20, 21, 22, 23], start=1)]
    batch = collate(made, features(tmp_path, made), ("final_postnorm",), prompt_weight=0.0)
    assert batch.weight.tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0]]
    window = UnrollWindow.of(batch)
    # Pair t holds token t + 1 and predicts token t + 2: 13 is predicted by pair 1, 22 by pair 0.
    assert window.index[:, 0].tolist() == [1, 0]
    assert (window.truth(0) * (window.weight(0) > 0)).tolist() == [[13, 14, 15], [22, 23, 0]]
    assert (window.inputs(0) * (window.weight(0) > 0)).tolist() == [[12, 13, 14], [21, 22, 0]]
    assert (window.truth(1) * (window.weight(1) > 0)).tolist() == [[14, 15, 0], [23, 0, 0]]
    assert (window.inputs(1) * (window.weight(1) > 0)).tolist() == [[13, 14, 0], [22, 0, 0]]
    assert not window.weight(3).any()


def test_prompt_tokens_can_carry_a_weight(tmp_path: Path) -> None:
    made = [sample([10, 11, 12, 13, 14, 15], start=3)]
    batch = collate(made, features(tmp_path, made), ("final_postnorm",), prompt_weight=0.5)
    assert batch.weight.tolist() == [[0, 0.5, 0.5, 1, 1, 1]]
    assert UnrollWindow.of(batch).weight(0).tolist() == [[0.5, 1, 1, 1]]


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    lengths = [5 + 7 * i % 90 for i in range(50)]
    first, second = (BatchOrder(lengths, max_tokens=300, seed=1) for _ in range(2))
    expected = [first[k] for k in range(60)]
    assert [second[k] for k in (59, 3, 30)] == [expected[k] for k in (59, 3, 30)]
    assert [BatchOrder(lengths, max_tokens=300, seed=2)[k] for k in range(60)] != expected
    size = sum(1 for _ in first._batches(0))
    assert expected[:size] != expected[size : 2 * size], "shuffled anew every epoch"
    for batch in expected:
        assert len(batch) * max(lengths[i] for i in batch) <= 300
    seen: list[int] = []
    while len(seen) < 50:
        seen += expected.pop(0)
    assert sorted(seen) == list(range(50)), "an epoch has each sample once"


def test_processes_share_the_batches_and_resume() -> None:
    order = BatchOrder([10] * 40, max_tokens=50, seed=0)
    alone = list(StepLoader(order, tuple, count=8))
    parts = [list(StepLoader(order, tuple, count=4, rank=rank, ranks=2)) for rank in range(2)]
    assert alone == [one for pair in zip(*parts, strict=True) for one in pair]
    loader = StepLoader(order, tuple, count=8)
    stream = iter(loader)
    for _ in range(3):
        next(stream)
    resumed = StepLoader(order, tuple, count=8)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == alone[3:]


def test_order_needs_no_more_than_the_lengths() -> None:
    assert samples().train[0].start >= 1
