"""DeepSeek-V3's layout of MTP modules: what is read, what is refused, and the way back."""

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
from specframe.heads.layers import Rope
from specframe.heads.mtp_file import load_mtp, save_mtp
from tests.heads.small_heads import eagle_net, mtp_net, shape
from tests.small_models import VOCAB

BIASES = frozenset({"q_proj", "k_proj", "v_proj"})
KINDS: dict[str, dict[str, Any]] = {
    "one": {"first": 61},
    "several": {"modules": 3},
    "own tables": {"modules": 2, "embeddings": VOCAB, "head": VOCAB},
    "qkv bias": {"shape": shape(biases=BIASES)},
    "head norms": {"modules": 2, "shape": shape(qk_norm=True)},
    "llama3 positions": {"shape": shape(rope=Rope(base=5e5, kind="llama3", factor=8.0))},
    "un-normed states": {"feature": "pre_norm", "recycle": "pre_norm"},
    "numbered from 0": {"first": 0},
}
NAMES = {
    "enorm",
    "hnorm",
    "eh_proj",
    "embed_tokens",
    "shared_head.norm",
    "shared_head.head",
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
}


def saved(folder: Path, **changes: Any) -> Path:
    """A file of random modules whose embeddings are one table."""
    net = mtp_net(**changes)
    for index in range(net.options.modules):
        own, first = net.module(index).embed_tokens, net.module(0).embed_tokens
        if own is not None and first is not None:
            own.weight.copy_(first.weight)
    save_mtp(net, folder)
    return folder


def edited(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> str:
    """The folder with its tensors changed."""
    file = folder / "model.safetensors"
    held = load_file(str(file))
    change(held)
    save_file(held, str(file))
    return str(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    first = load_mtp(str(saved(tmp_path / "a", **KINDS[kind]))).to(dtype)
    save_mtp(first, tmp_path / "b")
    back = load_mtp(str(tmp_path / "b"))
    assert back.options == first.options == mtp_net(**KINDS[kind]).options
    ours, theirs = back.state_dict(), first.state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype == dtype
        assert torch.equal(ours[key], value), key
    save_mtp(back, tmp_path / "c")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "b" / file).read_bytes() == (tmp_path / "c" / file).read_bytes()


def test_the_names_are_those_of_the_layout(tmp_path: Path) -> None:
    saved(tmp_path, first=61, embeddings=VOCAB, head=VOCAB)
    held = load_file(str(tmp_path / "model.safetensors"))
    assert set(held) == {f"model.layers.61.{name}.weight" for name in NAMES}
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (61, 1)


def test_a_whole_model_may_be_in_the_file(tmp_path: Path) -> None:
    saved(tmp_path, first=2, modules=2)

    def change(held: dict[str, Tensor]) -> None:
        block = {
            key.replace("layers.2", f"layers.{index}"): value.clone()
            for key, value in held.items()
            for index in (0, 1)
            if key.startswith("model.layers.2.") and ("self_attn" in key or "mlp" in key)
        }
        tables = ("model.embed_tokens.weight", "lm_head.weight")
        block |= {key: torch.zeros(VOCAB, 32) for key in tables}
        held |= {**block, "model.norm.weight": torch.ones(32)}
        # The model's own blocks are not run, so they may be of any kind.
        held["model.layers.0.mlp.experts.0.up_proj.weight"] = torch.zeros(2, 2)

    net = load_mtp(edited(tmp_path, change))
    assert (net.options.first, net.options.modules) == (2, 2)
    expected = mtp_net(first=2, modules=2).state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in net.state_dict().items())


def test_missing_and_surplus_keys_are_listed_together(tmp_path: Path) -> None:
    def change(held: dict[str, Tensor]) -> None:
        held["model.layers.4.extra"] = held.pop("model.layers.4.shared_head.norm.weight")
        held["mtp.fc.weight"] = held.pop("model.layers.4.hnorm.weight")
        del held["model.layers.3.mlp.up_proj.weight"]

    message = (
        r"missing model\.layers\.3\.mlp\.up_proj\.weight, model\.layers\.4\.hnorm\.weight, "
        r"model\.layers\.4\.shared_head\.norm\.weight; "
        r"surplus model\.layers\.4\.extra, mtp\.fc\.weight"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        load_mtp(edited(saved(tmp_path, modules=2), change))
    assert f"drafter.path={tmp_path}" in str(caught.value)


@pytest.mark.parametrize("name", ["embed_tokens", "shared_head.head"])
def test_a_copy_that_one_module_has_all_must_have(name: str, tmp_path: Path) -> None:
    saved(tmp_path, modules=2, embeddings=VOCAB, head=VOCAB)
    gone = f"model.layers.4.{name}.weight"

    def change(held: dict[str, Tensor]) -> None:
        del held[gone]

    with pytest.raises(ConfigError, match=f"missing {gone}"):
        load_mtp(edited(tmp_path, change))


def test_a_module_between_two_others_is_missed(tmp_path: Path) -> None:
    def change(held: dict[str, Tensor]) -> None:
        for key in [key for key in held if ".4." in key]:
            del held[key]

    with pytest.raises(ConfigError, match=r"missing model\.layers\.4\.eh_proj\.weight"):
        load_mtp(edited(saved(tmp_path, modules=3), change))


def test_other_heads_are_told_by_their_keys(tmp_path: Path) -> None:
    from specframe.heads.eagle_export import save_eagle

    save_eagle(eagle_net(), tmp_path)
    with pytest.raises(ConfigError, match=r"no.* MTP modules .*missing .*eh_proj\.weight.*surplus"):
        load_mtp(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("self_attn.kv_a_proj_with_mqa.weight", "multi-head latent attention"),
        ("mlp.experts.7.up_proj.weight", "a mixture of experts"),
        ("eh_proj.weight_scale_inv", "weights in 8 bits"),
    ],
)
def test_layers_that_are_not_served_are_named(name: str, what: str, tmp_path: Path) -> None:
    def change(held: dict[str, Tensor]) -> None:
        held[f"model.layers.3.{name}"] = torch.zeros(2, 2)

    with pytest.raises(ConfigError, match=f"{name} belongs to {what}"):
        load_mtp(edited(saved(tmp_path), change))


def test_modules_with_other_embeddings_are_refused(tmp_path: Path) -> None:
    def change(held: dict[str, Tensor]) -> None:
        held["model.layers.4.embed_tokens.weight"][5, 5] += 1

    saved(tmp_path, modules=2, embeddings=VOCAB)
    with pytest.raises(ConfigError, match=r"embed_tokens\.weight differ"):
        load_mtp(edited(tmp_path, change))


def test_shapes_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    def change(held: dict[str, Tensor]) -> None:
        key = "model.layers.3.eh_proj.weight"
        held[key] = held[key][:, :-1].contiguous()
        held["model.layers.3.enorm.weight"] = torch.ones(5)

    message = r"model\.layers\.3\.eh_proj\.weight \[32, 63\] instead of \[32, 64\].*enorm"
    with pytest.raises(ConfigError, match=message):
        load_mtp(edited(saved(tmp_path), change))


def test_what_a_configuration_tells(tmp_path: Path) -> None:
    file = saved(tmp_path) / "config.json"
    held = json.loads(file.read_text(encoding="utf-8"))
    own = {key: value for key, value in held.items() if not key.startswith("mtp_")}
    file.write_text(json.dumps(own), encoding="utf-8")
    options = load_mtp(str(tmp_path)).options
    assert (options.feature, options.recycle) == ("post_norm", "post_norm")
    file.write_text(json.dumps(held | {"mtp_recycle": "none"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="mtp_recycle=none; expected post_norm or pre_norm"):
        load_mtp(str(tmp_path))
