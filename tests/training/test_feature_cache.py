"""Cached hidden states are the target's own, whatever was cached, in whatever run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specframe.cache.dynamic import DynamicCache
from specframe.errors import ConfigError
from specframe.target.hf import HF
from specframe.training.feature_cache import FeatureCache, FeatureReader
from specframe.training.samples import TrainingSample
from tests.small_models import CPU, RUNTIME, TINY, model, target
from tests.training.small_courses import samples, small_target

TAPS = ("resid:1", "final_postnorm")


def made(
    folder: Path, *, max_bytes: int = 10**8, dtype: torch.dtype = torch.float64, **more: object
) -> tuple[FeatureCache, list[TrainingSample]]:
    part = samples().all
    tapped = FeatureReader(target=small_target(), taps=TAPS, dtype=dtype)
    identity = more.get("identity", "tiny")
    features = FeatureCache(
        tapped, part, width=64, folder=folder, max_bytes=max_bytes, identity=identity
    )
    return features, part


def alone(sample: TrainingSample, held: HF) -> torch.Tensor:
    cache = DynamicCache()
    cache.open(0, columns=len(sample), device=CPU)
    out = held.prefill(sample.tokens.tolist(), cache, taps=TAPS)
    return torch.cat([out.taps[name] for name in TAPS], dim=-1)


@pytest.mark.parametrize("family", TINY)
def test_packed_sequences_do_not_see_each_other(family: str) -> None:
    part = samples().all[:5]
    held = target(family)
    for sample, rows in zip(
        part, FeatureReader(target=held, taps=TAPS, dtype=torch.float64).rows(part), strict=True
    ):
        torch.testing.assert_close(rows, alone(sample, held), rtol=0, atol=1e-9)


def test_the_limit_is_kept_and_the_rest_is_computed(tmp_path: Path) -> None:
    whole, part = made(tmp_path / "whole")
    limit = 100 * 64 * 8
    some, _ = made(tmp_path / "some", max_bytes=limit)
    none, _ = made(tmp_path / "none", max_bytes=0)
    for features in (whole, some, none):
        features.fill(lambda done, count: None)
    assert (whole.num_cached, none.num_cached) == (len(part), 0)
    assert 0 < some.num_cached < len(part)
    assert (tmp_path / "some" / "features.bin").stat().st_size <= limit
    assert not (tmp_path / "none").exists()
    for ours in (some, none):
        for left, right in zip(whole.of(part), ours.of(part), strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-9)


def test_a_cache_is_carried_on_and_not_trusted_blindly(tmp_path: Path) -> None:
    first, part = made(tmp_path)
    first.fill(lambda done, count: None)
    expected = [one.clone() for one in first.of(part)]
    del first
    calls: list[int] = []
    again, same = made(tmp_path)
    again.fill(lambda done, count: calls.append(done))
    assert not calls, "all was there"
    assert all(torch.equal(a, b) for a, b in zip(expected, again.of(same), strict=True))
    del again
    other, _ = made(tmp_path, identity="another target")
    other.fill(lambda done, count: calls.append(done))
    assert calls, "another target's states are made anew"


def test_longer_answers_carry_on(tmp_path: Path) -> None:
    part = samples().all
    tapped = FeatureReader(target=small_target(), taps=TAPS, dtype=torch.float64)
    calls: list[tuple[int, int]] = []
    for count in (10, len(part)):
        features = FeatureCache(
            tapped, part[:count], width=64, folder=tmp_path, max_bytes=10**8, identity="tiny"
        )
        calls.clear()
        features.fill(lambda done, whole: calls.append((done, whole)))
        del features
    assert calls[0][0] > 10, "the first ten were there"
    whole, _ = made(tmp_path / "whole")
    whole.fill(lambda done, count: None)
    both, _ = made(tmp_path)
    for left, right in zip(whole.of(part), both.of(part), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-9)


def test_a_wider_file_serves_fewer_taps(tmp_path: Path) -> None:
    wide, part = made(tmp_path)
    wide.fill(lambda done, count: None)
    expected = [rows[:, 32:] for rows in wide.of(part)]
    del wide
    tapped = FeatureReader(target=small_target(), taps=TAPS[1:], dtype=torch.float64)
    for limit in (10**8, 100 * 64 * 8):  # also where some are computed anew
        narrow = FeatureCache(
            tapped, part, width=32, folder=tmp_path, max_bytes=limit, identity="tiny"
        )
        narrow.fill(lambda done, count: pytest.fail("all was there"))
        for ours, theirs in zip(narrow.of(part), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        del narrow


def test_a_cache_in_use_is_not_rewritten(tmp_path: Path) -> None:
    first, _ = made(tmp_path)
    first.fill(lambda done, count: None)
    same, _ = made(tmp_path)
    same.fill(lambda done, count: None)
    other, _ = made(tmp_path, identity="another target")
    with pytest.raises(ConfigError, match="another run uses it with other answers"):
        other.fill(lambda done, count: None)


def test_half_precision_rounds_the_same_cached_or_not(tmp_path: Path) -> None:
    cached, part = made(tmp_path, dtype=torch.float16)
    cached.fill(lambda done, count: None)
    fresh, _ = made(tmp_path / "none", dtype=torch.float16, max_bytes=0)
    for left, right in zip(cached.of(part), fresh.of(part), strict=True):
        assert left.dtype == right.dtype == torch.float16
        torch.testing.assert_close(left, right, rtol=2e-3, atol=1e-3)


def test_a_state_that_overflows_is_an_error() -> None:
    big = model("llama")
    big.model.norm.weight.data.mul_(1e6)
    tapped = FeatureReader(target=HF.of(big, runtime=RUNTIME), taps=TAPS, dtype=torch.float16)
    with pytest.raises(ConfigError, match=r"task\.cache_dtype=float16"):
        tapped.rows(samples().all[:1])


def test_a_target_with_dropout_is_bit_stable() -> None:
    held = HF.of(model("llama", attention_dropout=0.5).train(), runtime=RUNTIME)
    tapped = FeatureReader(target=held, taps=TAPS, dtype=torch.float64)
    part = samples().all[:3]
    for left, right in zip(tapped.rows(part), tapped.rows(part), strict=True):
        assert torch.equal(left, right)
