"""Published layouts of EAGLE heads: what is read, what is refused, and the way back."""

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
from specframe.heads.eagle_export import Layout, save_eagle
from specframe.heads.eagle_file import load_eagle, load_eagle3
from specframe.heads.layers import KeptView, Rope
from tests.golden.runs import Golden
from tests.heads.small_heads import eagle3_net, eagle_net, shape
from tests.small_models import VOCAB

BIASES = frozenset({"q_proj", "k_proj", "v_proj"})
EAGLES: dict[str, dict[str, Any]] = {
    "bias": {},
    "no bias": {"bias": False},
    "qkv bias": {"shape": shape(biases=BIASES)},
    "head norms": {"shape": shape(qk_norm=True)},
    "own tables": {"embeddings": VOCAB, "head": VOCAB},
    "two layers": {"layers": 2},
    "llama3 positions": {"shape": shape(rope=Rope(base=5e5, kind="llama3", factor=8.0))},
    "linear positions": {"shape": shape(rope=Rope(kind="linear", factor=2.0))},
}
EAGLE3S: dict[str, dict[str, Any]] = {
    "plain": {},
    "normed residual": {"norm_before_residual": True, "norm_output": True},
    "norm before fc": {"norm_before_fc": True},
    "norm per feature": {"fc_norm": True},
    "other target": {"feature_size": 24, "embeddings": VOCAB},
    "own layers": {"taps": (1, 17, 32)},
    "four features": {"features": 4, "taps": (1, 2, 3, 4)},
    "two layers": {"layers": 2},
    "full vocabulary": {"draft_vocab": VOCAB, "mapped": False, "marked": False},
    "no t2d": {"marked": False},
}


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(str(folder / "model.safetensors"))


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value.dtype == other[key].dtype, key
        assert torch.equal(value, other[key]), key


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", EAGLES)
def test_eagle_round_trip(kind: str, dtype: torch.dtype, layout: Layout, tmp_path: Path) -> None:
    net = eagle_net(**EAGLES[kind]).to(dtype)
    save_eagle(net, tmp_path / "a", layout=layout, verifier="some/target")
    back = load_eagle(str(tmp_path / "a"))
    assert back.options == net.options
    assert_equal(dict(back.state_dict()), dict(net.state_dict()))
    save_eagle(back, tmp_path / "b", layout=layout, verifier="some/target")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
@pytest.mark.parametrize("kind", EAGLE3S)
def test_eagle3_round_trip(kind: str, layout: Layout, tmp_path: Path) -> None:
    net = eagle3_net(**EAGLE3S[kind]).bfloat16()
    save_eagle(net, tmp_path / "a", layout=layout)
    back = load_eagle3(str(tmp_path / "a"))
    assert back.options == net.options
    assert_equal(dict(back.state_dict()), dict(net.state_dict()))
    save_eagle(back, tmp_path / "b", layout=layout)
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("name", ["eagle", "eagle_nobias", "eagle3"])
def test_published_files_come_back_bit_equal(name: str, tmp_path: Path) -> None:
    golden = Golden.of(name)
    load: Callable[[str], Any] = load_eagle3 if name == "eagle3" else load_eagle
    net = load(golden.unpacked(tmp_path / "published"))
    save_eagle(net, tmp_path / "again")
    assert_equal(tensors(tmp_path / "published"), tensors(tmp_path / "again"))
    save_eagle(net, tmp_path / "theirs", layout="speculators")
    assert_equal(dict(load(str(tmp_path / "theirs")).state_dict()), dict(net.state_dict()))


def test_the_names_are_those_of_the_layout(tmp_path: Path) -> None:
    save_eagle(eagle_net(), tmp_path / "eagle")
    assert "layers.0.self_attn.q_proj.weight" in tensors(tmp_path / "eagle")
    save_eagle(eagle_net(), tmp_path / "theirs", layout="speculators", verifier="some/target")
    held = tensors(tmp_path / "theirs")
    assert {"fusion_fc.weight", "fusion_fc.bias", "transformer.mlp.up_proj.weight"} <= held.keys()
    config = json.loads((tmp_path / "theirs/config.json").read_text(encoding="utf-8"))
    assert config["speculators_model_type"] == "eagle"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/target"
    assert config["transformer_layer_config"]["num_key_value_heads"] == 2
    save_eagle(eagle3_net(), tmp_path / "third")
    assert {"midlayer.hidden_norm.weight", "d2t", "t2d"} <= tensors(tmp_path / "third").keys()
    save_eagle(eagle3_net(), tmp_path / "spec3", layout="speculators")
    assert "layers.0.hidden_norm.weight" in tensors(tmp_path / "spec3")
    config = json.loads((tmp_path / "spec3/config.json").read_text(encoding="utf-8"))
    assert config["draft_vocab_size"] == 40
    assert "draft_vocab_size" not in config["transformer_layer_config"]


def edited(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> str:
    """The folder with its tensors changed."""
    held = tensors(folder)
    change(held)
    save_file(held, str(folder / "model.safetensors"))
    return str(folder)


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
def test_missing_and_surplus_keys_are_listed_together(layout: Layout, tmp_path: Path) -> None:
    save_eagle(eagle_net(), tmp_path / "one", layout=layout)
    first = "layers.0." if layout == "eagle" else "transformer."

    def change(held: dict[str, Tensor]) -> None:
        held["extra"] = held.pop(f"{first}self_attn.o_proj.weight")
        del held[f"{first}mlp.up_proj.weight"]

    message = f"missing {first}mlp.up_proj.weight, {first}self_attn.o_proj.weight; surplus extra"
    with pytest.raises(ConfigError, match=message) as caught:
        load_eagle(edited(tmp_path / "one", change))
    assert f"drafter.path={tmp_path / 'one'}" in str(caught.value)


def test_eagle3_keys_are_checked_too(tmp_path: Path) -> None:
    save_eagle(eagle3_net(fc_norm=True), tmp_path, layout="speculators")

    def change(held: dict[str, Tensor]) -> None:
        held["layers.0.hidden_norm"] = held.pop("layers.0.input_layernorm.weight")
        del held["fc_norm.1.weight"]

    message = (
        r"missing fc_norm\.1\.weight, layers\.0\.input_layernorm\.weight; "
        r"surplus fc_norm\.2\.weight, layers\.0\.hidden_norm"
    )
    with pytest.raises(ConfigError, match=message):
        load_eagle3(edited(tmp_path, change))


def test_half_a_bias_and_half_a_norm_are_errors(tmp_path: Path) -> None:
    save_eagle(eagle_net(layers=2, shape=shape(biases=BIASES, qk_norm=True)), tmp_path)

    def change(held: dict[str, Tensor]) -> None:
        del held["layers.1.self_attn.q_proj.bias"]
        del held["layers.0.self_attn.k_norm.weight"]

    with pytest.raises(ConfigError, match=r"missing layers\.0\.self_attn\.k_norm.*q_proj\.bias"):
        load_eagle(edited(tmp_path, change))


def test_the_other_family_is_named(tmp_path: Path) -> None:
    save_eagle(eagle_net(), tmp_path / "one")
    save_eagle(eagle3_net(), tmp_path / "three", layout="speculators")
    with pytest.raises(ConfigError, match=r"use drafter=eagle$|try drafter=eagle$"):
        load_eagle3(str(tmp_path / "one"))
    with pytest.raises(ConfigError, match=r"use drafter=eagle3$"):
        load_eagle(str(tmp_path / "three"))


def test_shapes_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    save_eagle(eagle_net(), tmp_path)

    def change(held: dict[str, Tensor]) -> None:
        held["fc.weight"] = held["fc.weight"][:, :-1].contiguous()
        held["layers.0.mlp.gate_proj.weight"] = torch.zeros(5, 5)

    with pytest.raises(
        ConfigError, match=r"fc\.weight \[32, 63\] instead of \[32, 64\].*gate_proj"
    ):
        load_eagle(edited(tmp_path, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d2t: d2t + torch.arange(40), "d2t and t2d name different|of 97 tokens"),
        (lambda d2t: torch.zeros_like(d2t), "d2t and t2d name different"),
        (lambda d2t: d2t.flip(0), "do not increase"),
        (lambda d2t: d2t - 50, "do not increase from 0"),
        (lambda d2t: d2t + 90, "of 97 tokens"),
        (lambda d2t: d2t[:-1].clone(), "d2t has 39 entries"),
    ],
)
def test_maps_that_hold_no_offsets_are_refused(
    change: Callable[[Tensor], Tensor], message: str, tmp_path: Path
) -> None:
    save_eagle(eagle3_net(), tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_eagle3(edited(tmp_path, lambda held: held.update(d2t=change(held["d2t"]))))


def test_a_map_that_was_never_filled_is_refused(tmp_path: Path) -> None:
    save_eagle(eagle3_net(marked=False), tmp_path)
    with pytest.raises(ConfigError, match="never filled"):
        load_eagle3(edited(tmp_path, lambda held: held.update(d2t=held["d2t"] * 0)))


def with_config(folder: Path, **changes: Any) -> str:
    """The folder with fields of config.json changed; None takes one out."""
    file = folder / "config.json"
    held = json.loads(file.read_text(encoding="utf-8")) | changes
    kept = {key: value for key, value in held.items() if value is not None}
    file.write_text(json.dumps(kept), encoding="utf-8")
    return str(folder)


def test_what_a_configuration_tells(tmp_path: Path) -> None:
    save_eagle(eagle3_net(), tmp_path)
    key = "eagle_aux_hidden_state_layer_ids"
    # At the top they are entries of blocks; within eagle_config they are blocks that were left.
    assert load_eagle3(with_config(tmp_path, **{key: [2, 18, 33]})).options.taps == (2, 18, 33)
    nested = with_config(tmp_path, **{key: None, "eagle_config": {key: [1, 17, 32]}})
    assert load_eagle3(nested).options.taps == (2, 18, 33)
    assert load_eagle3(with_config(tmp_path, rope_theta=None)).options.shape.rope.base == 10000.0
    parameters = {"rope_type": "default", "rope_theta": 5e5}
    assert load_eagle3(with_config(tmp_path, rope_parameters=parameters)).options.shape.rope == (
        Rope(base=5e5)
    )
    assert load_eagle3(with_config(tmp_path, head_dim=None)).options.shape.head_dim == 8
    with pytest.raises(ConfigError, match="head_dim or num_attention_heads"):
        load_eagle3(with_config(tmp_path, num_attention_heads=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type yarn"),
        ({"rope_theta": "abc"}, "config.json has rope_theta='abc'; expected a positive number"),
        ({"rope_theta": -1.0}, "config.json has rope_theta=-1.0; expected a positive number"),
        ({"rope_scaling": {"rope_type": "linear"}}, "config.json lacks factor; expected"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "x"}}, "config.json has factor='x'"),
        ({"rms_norm_eps": [1]}, r"config.json has rms_norm_eps=\[1\]; expected a positive"),
        ({"head_dim": "8"}, "config.json has head_dim='8'; expected a positive whole"),
        ({"layer_types": ["sliding_attention"]}, "sliding window"),
        ({"head_dim": 7}, "heads of 7"),
    ],
)
def test_what_is_not_served_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_eagle(eagle_net(), tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_eagle(with_config(tmp_path, **changes))


def test_angles_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=parameters)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    found = Rope(base=5e5, kind="llama3", factor=8.0).frequencies(128)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_a_layer_is_that_of_transformers() -> None:
    """Grouped heads, biases, norms and rotation, against a decoder layer of Qwen2."""
    from transformers import Qwen2Config
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding

    config = Qwen2Config(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2
    )
    config._attn_implementation = "eager"
    theirs = Qwen2DecoderLayer(config, 0).double()
    ours = eagle_net(layers=2, shape=shape(biases=BIASES)).layers[1]
    ours.load_state_dict(theirs.state_dict())
    x, positions = torch.randn(1, 6, 32, dtype=torch.float64), torch.arange(3, 9)
    causal = torch.ones(6, 6).tril().bool()
    bias = torch.zeros(6, 6, dtype=torch.float64).masked_fill(~causal, -torch.inf)[None, None]
    angles = Qwen2RotaryEmbedding(config)(x, positions[None])
    with torch.no_grad():
        expected = theirs(x, attention_mask=bias, position_embeddings=angles)
        for visible in (None, causal):
            keep = lambda layer, keys, values: (keys, values)  # noqa: E731
            found = ours(x, KeptView(positions=positions, visible=visible, keep=keep))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
