"""Packed weights and blocks in one call: what they compute, and that no row minds its company."""

from __future__ import annotations

import copy
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from specframe.cache.base import CacheManager
from specframe.cache.dynamic import DynamicCache
from specframe.compose.build import load
from specframe.costs.ceilings import PassWorkload
from specframe.errors import IncompatibleComponents
from specframe.kernel import library as kernel
from specframe.kernel import packed_linear
from specframe.kernel.packed_linear import PackedLinear, PackedMatrix, Precision, pack_linears
from specframe.kernel.trunk import FusedTrunk
from specframe.runtime.eager import Eager
from specframe.runtime.packed import Packed as PackedRuntime
from specframe.runtime.packed import _compiled
from specframe.target.hf import HF
from specframe.types import Rows
from tests.small_models import model

FAMILIES = ("llama", "qwen2", "qwen3")
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # widths that vectors divide
TAPS = ("embed", "resid:0", "resid:2", "resid:3", "final_prenorm", "final_postnorm")


def runtime(**changes: Any) -> PackedRuntime:
    values = {
        "weights": "float32",
        "drafts": "bfloat16",
        "kernel": "own",
        "cuda": None,
        "buckets": None,
    }
    return PackedRuntime(**{**values, **changes})


def both(name: str, **changes: Any) -> tuple[HF, HF]:
    """A random model under `eager` and under `packed`, in float32."""
    made = model(name, **changes).float()
    packed = HF.of(copy.deepcopy(made), runtime=runtime())
    return HF.of(made, runtime=Eager(buckets=None)), packed


@pytest.mark.parametrize("form", get_args(Precision))
@pytest.mark.parametrize("shape", [(64, 16), (1, 7), (33, 24), (95, 576), (130, 40)])
def test_products(shape: tuple[int, int], form: Precision) -> None:
    weight, bias = torch.randn(shape), torch.randn(shape[0])
    packed = PackedMatrix(weight, bias, precision=form)
    kept = packed.unpacked().float()
    if form == "int8":  # half a step of each column's scale
        steps = weight.abs().amax(1, keepdim=True) / 127
        assert ((kept - weight).abs() <= 0.501 * steps).all()
        assert ((kept / steps).round().abs().amax(1) == 127).all()
    else:
        assert torch.equal(kept, weight.to(getattr(torch, form)).float())
    for rows in (*range(1, 32), 300):
        x = torch.randn(rows, shape[1])
        expected = nn.functional.linear(x.double(), kept.double(), bias.double())
        error = (packed(x) - expected).abs().max() / shape[1] ** 0.5
        assert error < 1e-5
        assert torch.equal(packed(x[None, -1:])[0], packed(x)[-1:])  # bit for bit, alone or not


def test_rounding_takes_its_rows_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(95, 24)
    whole = PackedMatrix(weight, precision="int8").unpacked()
    monkeypatch.setattr(packed_linear, "_ROWS", 16)
    assert torch.equal(PackedMatrix(weight, precision="int8").unpacked(), whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_of_another_dtype_are_computed_in_float32(dtype: torch.dtype) -> None:
    packed, x = PackedMatrix(torch.randn(33, 24)), torch.randn(5, 24).to(dtype)
    assert torch.equal(packed(x), packed(x.float()))


def test_a_layer_looks_as_it_did() -> None:
    layer = nn.Linear(24, 33)
    packed = PackedLinear(layer, precision="float32")
    assert torch.equal(packed.weight, layer.weight)
    assert packed.bias is not None
    assert torch.equal(packed.bias, layer.bias)
    assert not list(packed.parameters())


def tree(cache: CacheManager, parents: list[int], order: list[int] | None = None) -> Rows:
    """Rows of a tree over a committed prefix; order: which reserved slot each row takes."""
    count, base = len(parents), cache.lengths[0]
    fresh, places = cache.reserve([count]), torch.tensor(order or range(count))
    columns = fresh.columns[places]
    sees = torch.zeros((count, fresh.extent), dtype=torch.bool)
    depths = []
    for row, parent in enumerate(parents):
        sees[row] |= sees[parent] if parent >= 0 else False
        sees[row, columns[row]] = True
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return Rows(
        tokens=(7 * torch.arange(count) + 1) % 13,
        positions=base + torch.tensor(depths),
        slots=fresh.slots[places],
        prefix=torch.full((count,), base),
        sees=sees,
    )


def scored(target: HF, parents: list[int], **more: Any) -> Any:
    cache = DynamicCache()
    cache.open(0, columns=64, device=target.device)
    target.prefill([3, 1, 4, 1, 5, 9, 2], cache)
    rows = tree(cache, parents, more.pop("order", None))
    return target.forward(rows, cache, want=torch.arange(len(parents)), **more)


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_compute_what_the_model_computes(name: str) -> None:
    plain, packed = both(name, **WIDE)
    assert isinstance(packed._trunk, FusedTrunk)
    for parents in ([-1], [-1, 0, 0, 1, 1, 3, 2], [-1] + 40 * [0]):
        found, expected = (scored(one, parents, taps=TAPS) for one in (packed, plain))
        scale = expected.logits.std()
        assert (found.logits - expected.logits).abs().max() < 1e-4 * scale
        assert found.taps.keys() == expected.taps.keys()
        for tap, value in expected.taps.items():
            torch.testing.assert_close(found.taps[tap], value, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.hidden, expected.hidden, rtol=1e-4, atol=1e-4)


def test_gates_far_from_zero() -> None:
    """e^-x of such a gate is more than a float holds."""
    made = model("llama", **WIDE).float()
    with torch.no_grad():
        for block in made.model.layers:
            block.mlp.gate_proj.weight.mul_(1e3)
    packed = HF.of(copy.deepcopy(made), runtime=runtime())
    plain = HF.of(made, runtime=Eager(buckets=None))
    found, expected = scored(packed, [-1, 0, 1]).logits, scored(plain, [-1, 0, 1]).logits
    assert (found - expected).abs().max() < 1e-3 * expected.std()


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_of_the_model(name: str) -> None:
    plain, packed = both(name, **WIDE)
    skip = frozenset({"attention:1", "mlp:2"})
    for more in ({"skip": skip}, {"layers": (0, 2)}):
        found, expected = (scored(one, [-1, 0, 1, 0], **more) for one in (packed, plain))
        torch.testing.assert_close(found.hidden, expected.hidden, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-3, atol=1e-3)


def resumed(target: HF) -> Tensor:
    """Logits of a tree whose first block ran on its own."""
    cache = DynamicCache()
    cache.open(0, columns=64, device=target.device)
    target.prefill([3, 1, 4], cache)
    rows = tree(cache, [-1, 0, 0, 2])
    lower = target.forward(rows, cache, layers=(0, 1))
    upper = replace(rows, tokens=None, hidden=lower.hidden)
    out = target.forward(upper, cache, layers=(1, 3), want=torch.arange(4))
    assert out.logits is not None
    only_head = target.forward(
        replace(rows, tokens=None, hidden=out.hidden),
        cache,
        layers=(3, 3),
        want=torch.arange(4),
    )
    assert only_head.logits is not None
    assert torch.equal(only_head.logits, out.logits)
    return out.logits


def test_a_resumed_pass_is_the_whole_one() -> None:
    _, packed = both("llama", **WIDE)
    cache = DynamicCache()
    cache.open(0, columns=64, device=packed.device)
    packed.prefill([3, 1, 4], cache)
    whole = packed.forward(tree(cache, [-1, 0, 0, 2]), cache, want=torch.arange(4))
    assert whole.logits is not None
    assert torch.equal(resumed(packed), whole.logits)


def test_a_node_computes_bit_for_bit_what_its_path_computes() -> None:
    """Any company, any slots, a hidden row between: also what plain decoding, and prefill, give."""
    _, packed = both("llama", **WIDE)
    parents = [-1, 0, 0, 2, 1, 3]
    found = scored(packed, parents, order=[4, 0, 2, 1, 5, 3])
    # Slots out of order change the order of sums; in order, nothing changes.
    ordered = scored(packed, parents)
    torch.testing.assert_close(found.logits, ordered.logits, rtol=1e-4, atol=1e-4)
    path = [0, 2, 3, 5]
    cache = DynamicCache()
    cache.open(0, columns=64, device=packed.device)
    packed.prefill([3, 1, 4, 1, 5, 9, 2], cache)
    one_by_one = []
    for row in path:
        out = packed.prefill([(7 * row + 1) % 13], cache)
        one_by_one.append(out.logits[0])
    assert torch.equal(torch.stack(one_by_one), ordered.logits[path])
    cache.open(0, columns=64, device=packed.device)
    tokens = [3, 1, 4, 1, 5, 9, 2, *[(7 * row + 1) % 13 for row in path]]
    assert torch.equal(packed.prefill(tokens, cache).logits[0], ordered.logits[path[-1]])


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, packed = both("llama", **WIDE)
    alone = scored(packed, [-1, 0, 0, 1])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(scored(packed, [-1, 0, 0, 1]).logits, alone.logits)


def test_the_control_is_not_invariant() -> None:
    """Under `eager` the same comparison fails for rows enough, so the test above can fail."""
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    plain, packed = both("llama", **wide)
    different = []
    for target in (plain, packed):
        alone, together = scored(target, [-1]).logits[0], scored(target, [-1] + 40 * [0]).logits[0]
        different.append(not torch.equal(alone, together))
    assert different == [True, False]


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "llama"])
def test_other_models_run_their_own_code(name: str) -> None:
    plain, packed = both(name)  # llama: widths that no vector divides
    assert packed._trunk is None
    found, expected = scored(packed, [-1, 0, 0, 1]), scored(plain, [-1, 0, 0, 1])
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-3, atol=1e-3)


def test_other_precisions_are_left_alone() -> None:
    made = model("llama", **WIDE)
    target = HF.of(made, runtime=runtime())
    assert target._trunk is None
    assert isinstance(target.model.lm_head, nn.Linear)


def test_weights_are_kept_once() -> None:
    made = model("llama", **WIDE).float()
    count = sum(one.numel() for one in made.parameters())
    target = HF.of(made, runtime=runtime())
    left = sum(one.numel() for one in target.model.parameters())
    embedding = target.model.get_input_embeddings().weight.numel()
    norms = (
        count
        - embedding
        - sum(
            one.in_features * one.out_features
            for one in target.model.modules()
            if isinstance(one, PackedLinear)
        )
    )
    assert left == embedding + norms


def test_each_weight_goes_when_it_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(*[nn.Linear(32, 32) for _ in range(6)])
    weights = [weakref.ref(layer.weight) for layer in layers.children()]
    alive = []

    class Counting(PackedLinear):
        def __init__(self, layer: nn.Linear, *, precision: Precision) -> None:
            super().__init__(layer, precision=precision)
            alive.append(sum(one() is not None for one in weights))

    monkeypatch.setattr(packed_linear, "PackedLinear", Counting)
    pack_linears(layers, precision="float32")
    assert alive == [6, 5, 4, 3, 2, 1]


def _resident(start: int) -> int:
    """Bytes in memory of the mapping that begins there."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    mapping = text.partition(f"\n{start:08x}-")[2]
    return 1024 * int(mapping.partition("\nRss:")[2].split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked at in /proc")
@pytest.mark.parametrize("written", [False, True])
def test_a_mapped_weight_leaves_memory_once_packed(written: bool, tmp_path: Path) -> None:
    shape = (1024, 512)
    values = torch.randn(shape)
    values.numpy().tofile(tmp_path / "weight")
    mapped = torch.from_file(str(tmp_path / "weight"), size=values.numel()).view(shape)
    if written:  # memory's own now: the file has other bytes
        mapped[5, 7] = values[5, 7] = 3.0
    layer = nn.Linear(*reversed(shape), bias=False)
    layer.weight = nn.Parameter(mapped)
    held = nn.Sequential(layer)
    pack_linears(held, precision="float32")
    assert (_resident(mapped.data_ptr()) >= mapped.nbytes) == written
    assert torch.equal(held[0].packed.unpacked(), values)
    assert torch.equal(mapped, values), "whoever else holds the weight reads it as it was"


def test_what_a_pass_reads_is_counted_alike() -> None:
    found = []
    for target in both("llama", **WIDE):
        cache = DynamicCache()
        cache.open(0, columns=8, device=target.device)
        target.prefill([3, 1, 4], cache)
        found.append(PassWorkload.of(target, cache))
    assert found[0] == found[1]
    assert found[0] is not None


@pytest.mark.parametrize(("form", "size"), [("bfloat16", 2), ("int8", 1)])
def test_what_a_pass_reads_is_counted_as_it_is_kept(form: Precision, size: int) -> None:
    target = HF.of(model("llama", **WIDE).float(), runtime=runtime(weights=form))
    cache = DynamicCache()
    cache.open(0, columns=8, device=target.device)
    target.prefill([3, 1, 4], cache)
    found = PassWorkload.of(target, cache)
    assert found is not None
    outputs = sum(one.out_features for one in target.model.modules() if type(one) is PackedLinear)
    assert found.bytes == size * found.parameters + (4 * outputs if form == "int8" else 0)


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_weights_are_rounded_and_nothing_else(form: Precision) -> None:
    made = model("llama", **WIDE).float()
    rounded = copy.deepcopy(made)
    for layer in rounded.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = PackedMatrix(layer.weight, precision=form).unpacked().float()
    packed = HF.of(made, runtime=runtime(weights=form))
    plain = HF.of(rounded, runtime=Eager(buckets=None))
    found, expected = scored(packed, [-1, 0, 1]), scored(plain, [-1, 0, 1])
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", get_args(Precision))
def test_rounded_weights_say_so(form: Precision, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["target=toy", "drafter=none", f"runtime.weights={form}", "require_lossless=true"]
    made = runtime(weights=form)
    if form == "float32":
        assert made.weights.lossy is None
        load(words)
    else:
        refusal = f"runtime.weights={form} rounds the target's weights"
        with pytest.raises(IncompatibleComponents, match=refusal):
            load(words)


def kept_as(target: Any) -> set[int]:
    """Bytes of a packed weight's values."""
    layers = [one for one in target.model.modules() if isinstance(one, PackedLinear)]
    assert layers
    return {layer.packed.matrix.bytes for layer in layers}


def test_a_draft_model_is_rounded_the_target_never(tmp_path: Path) -> None:
    for folder, seed in (("large", 0), ("small", 1)):
        torch.manual_seed(seed)
        model("llama", **WIDE).float().save_pretrained(tmp_path / folder)
    words = ["target=hf", f"target.path={tmp_path / 'large'}", "drafter=lm", "accept=match"]
    words += ["drafter.trust_vocabulary=true", "raw=true", "runtime=packed"]
    texts = []
    for drafts, size in (("float32", 4), ("bfloat16", 2), ("int8", 1)):
        one = [*words, f"runtime.drafts={drafts}", f"drafter.model={tmp_path / 'small'}"]
        engine = load(one)
        drafter: Any = engine.components.drafter
        assert kept_as(engine.components.target) == {4}
        assert kept_as(drafter.model) == {size}
        texts.append(engine.generate([3, 1, 4, 1, 5], max_new_tokens=24).tokens)
    assert texts[0] == texts[1] == texts[2]
    (tmp_path / "link").symlink_to(tmp_path / "large")
    for path in ("large", "small/../large", "link"):
        itself: Any = load([*words, f"drafter.model={tmp_path}/{path}"]).components
        assert itself.drafter.model is itself.target  # nothing is loaded twice, nothing rounded


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel.library.cache_clear()
    _compiled.cache_clear()
    yield
    kernel.library.cache_clear()
    _compiled.cache_clear()


def test_a_missing_compiler_is_one_line(
    no_compiler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, packed = both("llama", **WIDE)
    assert packed._trunk is None
    assert capsys.readouterr().err == (
        "specframe: runtime=packed: no C++ compiler (looked for $CXX=no-such-compiler); "
        "install g++; running as eager\n"
    )
    assert torch.equal(scored(packed, [-1, 0]).logits, scored(plain, [-1, 0]).logits)


def test_a_broken_compiler_is_named(
    no_compiler: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    with pytest.raises(kernel.NoCompiler, match="false failed: no message"):
        kernel.library()
    assert not list(tmp_path.rglob("*.so"))


def test_tasks_on_the_models_own_layers_run_eager() -> None:
    from specframe.compose.build import plan
    from specframe.compose.overrides import compose

    made = plan(compose(["task=distill", "target=toy", "runtime=packed"]))
    assert made.bound["runtime"].word == "eager"
    assert plan(compose(["target=toy", "drafter=none"])).bound["runtime"].word == "packed"


@pytest.mark.slow
def test_a_pass_is_fast_enough() -> None:
    """One thread, interleaved, against transformers' own forward of one row on this machine."""
    import statistics
    import time

    words = ["target=smollm2", "drafter=none", "device=cpu", "threads=1"]
    times: dict[tuple[str, int], list[float]] = {}
    engines = {name: load([*words, f"runtime={name}"]) for name in ("eager", "packed")}
    for _ in range(9):
        for name, engine in engines.items():
            for rows in (1, 8, 16):
                start = time.perf_counter()
                scored(engine.components.target, [-1] + (rows - 1) * [0])
                times.setdefault((name, rows), []).append(time.perf_counter() - start)
    middle = {key: statistics.median(one) for key, one in times.items()}
    plain = middle["eager", 1]
    assert middle["packed", 1] < plain / 1.5
    assert middle["packed", 8] < plain
    assert middle["packed", 16] < 1.25 * plain
