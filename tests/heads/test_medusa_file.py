"""Published layouts of Medusa heads: what is read, what is refused, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specframe.errors import ConfigError
from specframe.heads.medusa_file import load_medusa, save_medusa
from specframe.heads.medusa_net import MedusaNet
from tests.heads.small_medusa_heads import HIDDEN, medusa_net
from tests.small_models import VOCAB

Tensors = dict[str, Tensor]
KINDS: dict[str, dict[str, Any]] = {
    "own heads": {},
    "target's head": {"rows": 0},
    "two blocks": {"layers": 2},
    "two blocks, target's head": {"layers": 2, "rows": 0},
    "no block": {"layers": 0, "bias": False},
    "no bias": {"bias": False},
    "one head": {"heads": 1},
    "twelve heads": {"heads": 12, "rows": 9, "mapped": 9},
    "mapped": {"rows": 40, "mapped": 40},
    "mapped, whole heads": {"mapped": 40},
    "mapped, target's head": {"rows": 0, "mapped": 40},
}


def assert_equal(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value.dtype == other[key].dtype, key
        assert torch.equal(value, other[key]), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    net = medusa_net(**KINDS[kind]).to(dtype)
    save_medusa(net, tmp_path / "a", base="some/target")
    back = load_medusa(str(tmp_path / "a"))
    assert back.options == net.options
    assert_equal(dict(back.state_dict()), dict(net.state_dict()))
    save_medusa(back, tmp_path / "b", base="some/target")
    for file in ("config.json", "medusa_lm_head.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_the_names_are_those_of_the_layout(tmp_path: Path) -> None:
    save_medusa(medusa_net(heads=2, layers=2), tmp_path)
    held = load_file(str(tmp_path / "medusa_lm_head.safetensors"))
    parts = [f"{j}.linear.{part}" for j in (0, 1) for part in ("weight", "bias")]
    assert set(held) == {f"{i}.{part}" for i in (0, 1) for part in (*parts, "2.weight")}
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (2, 2)


def plain(net: MedusaNet, layout: str) -> Tensors:
    """The tensors of a net under the names of a published layout."""
    layers, held = net.options.layers, dict(net.state_dict())
    if layout == "whole":
        base = {"model.embed_tokens.weight": torch.ones(3, 2), "lm_head.weight": torch.ones(3, 2)}
        return base | {f"medusa_head.{key}": value for key, value in held.items()}
    if layout == "published":
        return held
    prefix, named = layout.removeprefix("vllm"), {}
    for key, value in held.items():
        head, _, rest = key.partition(".")
        if key == "token_map":
            named[key] = value
        elif rest == f"{layers}.weight":
            named[f"lm_heads.{head}.weight"] = value
        else:
            named[f"blocks.{head}.layers.{rest.replace('.linear', '')}"] = value
    return {prefix + key: value for key, value in named.items()}


LAYOUTS = ("published", "whole", "vllm", "vllmmedusa_heads.")


@pytest.mark.parametrize("kind", ["own heads", "two blocks", "target's head", "no bias", "mapped"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read(layout: str, kind: str, tmp_path: Path) -> None:
    net = medusa_net(**KINDS[kind])
    save_file(plain(net, layout), str(tmp_path / "model.safetensors"))
    # Published configurations say 2 whatever there is.
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2, "num_heads": 2}')
    back = load_medusa(str(tmp_path))
    assert back.options == net.options
    assert_equal(dict(back.state_dict()), dict(net.state_dict()))


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "pytorch_model.bin", "heads.pth"])
def test_torch_files_are_read(name: str, tmp_path: Path) -> None:
    net = medusa_net()
    torch.save(dict(net.state_dict()), tmp_path / name)
    path = tmp_path / name if name == "heads.pth" else tmp_path
    assert_equal(dict(load_medusa(str(path)).state_dict()), dict(net.state_dict()))


def test_blocks_that_are_one_module_come_apart(tmp_path: Path) -> None:
    # The reference lists one module n times; its files hold the same memory under n names.
    held = dict(medusa_net(layers=3).state_dict())
    for head in range(4):
        for block in (1, 2):
            for part in ("weight", "bias"):
                held[f"{head}.{block}.linear.{part}"] = held[f"{head}.0.linear.{part}"]
    torch.save(held, tmp_path / "medusa_lm_head.pt")
    back = load_medusa(str(tmp_path))
    assert_equal(dict(back.state_dict()), held)
    places = [weight.data_ptr() for weight in back.parameters()]
    assert len(set(places)) == len(places)
    save_medusa(back, tmp_path / "again")
    assert_equal(load_file(str(tmp_path / "again" / "medusa_lm_head.safetensors")), held)


def test_nets_with_shared_memory_are_saved(tmp_path: Path) -> None:
    net = medusa_net(heads=2)
    net[1] = net[0]
    save_medusa(net, tmp_path)
    assert_equal(dict(load_medusa(str(tmp_path)).state_dict()), dict(net.state_dict()))


@pytest.mark.parametrize("key", ["lm_head.weight", "lm_heads.0.weight"])
def test_one_output_matrix_for_all_heads(key: str, tmp_path: Path) -> None:
    held = plain(medusa_net(), "vllm")
    outputs = [name for name in held if name.startswith("lm_heads")]
    kept = held[outputs[0]]
    held = {name: one for name, one in held.items() if name not in outputs} | {key: kept}
    save_file(held, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text('{"original_lm_head": true}')
    net = load_medusa(str(tmp_path))
    assert all(torch.equal(net.output(head), kept) for head in range(4))
    save_medusa(net, tmp_path / "again")
    back = load_medusa(str(tmp_path / "again"))
    assert_equal(dict(back.state_dict()), dict(net.state_dict()))


def test_of_a_whole_model_in_shards_only_the_heads_are_read(tmp_path: Path) -> None:
    net = medusa_net()
    held = plain(net, "whole")
    shards: dict[str, Tensors] = {}
    for number, (key, value) in enumerate(sorted(held.items())):
        own = 1 + number % 2 if key.startswith("medusa_head.") else 3
        shards.setdefault(f"model-{own:05}-of-00003.safetensors", {})[key] = value
    for name, tensors in shards.items():
        save_file(tensors, str(tmp_path / name))
    (tmp_path / "model-00003-of-00003.safetensors").write_bytes(b"never read")
    places = {key: name for name, tensors in shards.items() for key in tensors}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert_equal(dict(load_medusa(str(tmp_path)).state_dict()), dict(net.state_dict()))
    index.write_text("{}")
    with pytest.raises(ConfigError, match="is no index"):
        load_medusa(str(tmp_path))


def refused(folder: Path, held: Tensors, message: str) -> None:
    folder.mkdir(exist_ok=True)
    save_file(held, str(folder / "medusa_lm_head.safetensors"))
    with pytest.raises(ConfigError, match=message) as caught:
        load_medusa(str(folder))
    assert f"drafter.path={folder}" in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_and_surplus_keys_are_listed_together(layout: str, tmp_path: Path) -> None:
    held = plain(medusa_net(), layout)
    heads = [key for key in held if "linear" in key or "layers" in key or "lm_heads" in key]
    gone = sorted(key for key in heads if key.endswith("weight"))[2]
    weight = held.pop(gone)
    extra = {"whole": "medusa_head.norm", "published": "norm"}.get(layout, "blocks.norm")
    refused(tmp_path, held | {extra: weight}, f"missing {gone}; surplus {extra}$")


CHANGES: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "half a bias": (lambda held: held.pop("2.0.linear.bias"), r"missing 2\.0\.linear\.bias$"),
    "half the outputs": (lambda held: held.pop("3.1.weight"), r"missing 3\.1\.weight$"),
    "a gap": (
        lambda held: [held.pop(key) for key in list(held) if key.startswith("1.")],
        r"missing 1\.0\.linear\.bias, 1\.0\.linear\.weight, 1\.1\.weight$",
    ),
    "output of another depth": (
        lambda held: held.update({"0.2.weight": held.pop("0.1.weight")}),
        r"missing 0\.1\.weight; surplus 0\.2\.weight",
    ),
    "another size": (
        lambda held: held.update({"2.0.linear.weight": torch.ones(8, 8)}),
        r"shapes do not fit together: 2\.0\.linear\.weight \[8, 8\] instead of \[32, 32\]",
    ),
    "a vector": (lambda held: held.update({"0.0.linear.weight": torch.ones(8)}), "matrices"),
    "a bias alone": (lambda held: held.pop("0.0.linear.weight"), r"missing 0\.0\.linear\.weight"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_faulty_files_are_refused(what: str, tmp_path: Path) -> None:
    change, message = CHANGES[what]
    held = dict(medusa_net().state_dict())
    change(held)
    refused(tmp_path, held, message)


def test_other_files_and_maps_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, {"fc.weight": torch.ones(2, 2)}, r"no Medusa heads.*the file has fc\.weight")
    held = dict(medusa_net(mapped=40, rows=40).state_dict())
    refused(tmp_path, held | {"token_map": torch.zeros(40).long()}, "names a token twice")
    refused(tmp_path, held | {"token_map": torch.arange(40) - 1}, "ids from 0")
    refused(tmp_path, held | {"token_map": torch.arange(41) + 9}, "41 entries up to 49")
    with pytest.raises(ConfigError, match="no such file or folder"):
        load_medusa(str(tmp_path / "absent"))


def test_new_heads_are_the_identity() -> None:
    net = MedusaNet(medusa_net(layers=2).options)
    states = torch.randn(3, HIDDEN)
    assert torch.equal(net(states), states.expand(4, 3, HIDDEN))
    assert net.logits(net(states)).shape == (4, 3, VOCAB)
