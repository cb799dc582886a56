"""The kernel of each shape: measured once, kept, ours unless another is clearly faster."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from specframe.errors import ConfigError
from specframe.kernel import fastest_kernel as choice
from specframe.kernel.onednn import OneDNNLinear
from specframe.kernel.packed_linear import PackedLinear
from specframe.kernel.trunk import FusedTrunk
from specframe.runtime.eager import Eager
from specframe.target.hf import HF
from tests.runtime.test_packed import WIDE, runtime, scored
from tests.small_models import model

SHAPES = [(64, 32), (64, 32), (128, 64)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache whose kernel is already compiled."""
    kernel = tmp_path / "kernel.so"
    monkeypatch.setattr(choice, "library_file", lambda: kernel)
    return tmp_path


def timed(monkeypatch: pytest.MonkeyPatch, times: dict[str, float]) -> list[choice.Shape]:
    """Stand-ins for measurements; what was measured."""
    seen: list[choice.Shape] = []

    def measure(shape: choice.Shape) -> choice.Times:
        seen.append(shape)
        return times

    monkeypatch.setattr(choice, "time_kernels", measure)
    return seen


def test_each_shape_is_measured_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = timed(monkeypatch, {"own": 1.0, "onednn": 2.0, "torch": 3.0})
    assert choice.fastest_kernels(SHAPES, joined=False) == {(64, 32): "own", (128, 64): "own"}
    assert seen == [(64, 32), (128, 64)]
    assert choice.fastest_kernels([*SHAPES, (8, 8)], joined=False)[8, 8] == "own"
    assert seen == [(64, 32), (128, 64), (8, 8)]
    (file,) = cache.glob("kernel-torch*.json")
    assert set(json.loads(file.read_text())) == {"64 x 32", "128 x 64", "8 x 8"}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)  # another number: other times
    choice.fastest_kernels(SHAPES, joined=False)
    assert len(seen) == 5


def test_another_kernel_must_be_clearly_faster(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, {"own": 1.09, "onednn": 1.0, "torch": 3.0})
    assert set(choice.fastest_kernels(SHAPES, joined=False).values()) == {"own"}
    for file in cache.glob("*.json"):
        file.unlink()
    timed(monkeypatch, {"own": 1.2, "onednn": 1.0, "torch": 3.0})
    assert set(choice.fastest_kernels(SHAPES, joined=False).values()) == {"onednn"}


def test_blocks_stay_joined_unless_the_whole_gains(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(shape: choice.Shape) -> choice.Times:
        small = shape == (64, 32)
        return {"own": 1.0 if small else 10.0, "torch": 0.5 if small else 10.0}

    monkeypatch.setattr(choice, "time_kernels", measure)
    assert choice.fastest_kernels(SHAPES, joined=False)[64, 32] == "torch"
    assert choice.fastest_kernels(SHAPES, joined=True)[64, 32] == "own"
    assert choice.fastest_kernels(10 * SHAPES[:2], joined=True)[64, 32] == "torch"


@pytest.mark.parametrize(
    "text", ['{"64 x 32"', "[]", '{"64 x 32": null}', '{"64 x 32": {"own": []}}']
)
def test_a_file_that_is_no_table_is_measured_anew(
    text: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = timed(monkeypatch, {"own": 1.0})
    choice.fastest_kernels(SHAPES, joined=True)
    (file,) = cache.glob("*.json")
    file.write_text(text)
    choice.fastest_kernels(SHAPES, joined=True)
    assert len(seen) == 4


def test_the_measurement_knows_all_kernels() -> None:
    times = choice.time_kernels((96, 64))
    assert set(times) == {"own", "torch", "onednn"}
    assert all(0 < one < 1e3 for one in times.values())


@pytest.mark.parametrize("kernel", ["own", "onednn", "torch"])
def test_every_kernel_computes_the_model(kernel: str) -> None:
    made = model("llama", **WIDE).float()
    plain = HF.of(copy.deepcopy(made), runtime=Eager(buckets=None))
    fast = runtime(kernel=kernel)
    packed = HF.of(made, runtime=fast)
    kind: Any = {"own": PackedLinear, "onednn": OneDNNLinear, "torch": nn.Linear}[kernel]
    block: Any = packed.model.model.layers[0]
    assert type(block.mlp.up_proj) is kind
    assert isinstance(packed._trunk, FusedTrunk) == (kernel == "own")
    assert set(fast.weights.kernels.values()) == {kernel}
    assert "96 x 64" in fast.weights.kernels
    weight = plain.model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(block.mlp.up_proj.weight, weight)
    found, expected = scored(packed, [-1, 0, 1, 0]), scored(plain, [-1, 0, 1, 0])
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-3, atol=1e-4)


def test_an_unknown_kernel_is_refused() -> None:
    from specframe import load

    with pytest.raises(ConfigError, match=r"runtime\.kernel"):
        load(["target=toy", "drafter=none", "runtime.kernel=mkl"])
