"""Checkpoints are what their configuration says, key for key; anything else is one clear line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specframe.errors import ConfigError
from specframe.models.checkpoint import load_strictly
from specframe.testing.tiny_models import LAYERS, full_logits, model

Change = Callable[[dict[str, Tensor], dict[str, Any]], object]
LAST = [
    "input_layernorm.weight",
    "mlp.down_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{name}_proj.weight" for name in "koqv"),
]


def saved(folder: Path, change: Change, *, family: str = "llama", **changes: Any) -> Any:
    """A model whose saved weights and configuration were changed."""
    made = model(family, **changes)
    made.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    change(weights, config)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return made


def layer_keys(number: int) -> str:
    return ", ".join(f"model.layers.{number}.{name}" for name in LAST)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda w, c: w.pop("lm_head.weight"), "missing lm_head.weight"),
        (
            lambda w, c: w.pop("model.layers.1.self_attn.k_proj.weight"),
            "missing model.layers.1.self_attn.k_proj.weight",
        ),
        (lambda w, c: c.update(num_hidden_layers=LAYERS + 1), f"missing {layer_keys(LAYERS)}"),
        (lambda w, c: c.update(num_hidden_layers=LAYERS - 1), f"surplus {layer_keys(LAYERS - 1)}"),
        (lambda w, c: w.update(extra=torch.zeros(2)), "surplus extra"),
        (
            lambda w, c: c.update(vocab_size=90),
            "shapes that config.json contradicts lm_head.weight [97, 32] instead of [90, 32], "
            "model.embed_tokens.weight [97, 32] instead of [90, 32]",
        ),
    ],
    ids=["head", "projection", "layer more", "layer fewer", "extra", "vocabulary"],
)
def test_every_key_and_shape_is_checked(tmp_path: Path, change: Change, complaint: str) -> None:
    saved(tmp_path, change)
    with pytest.raises(ConfigError) as caught:
        load_strictly("target.path=x", tmp_path)
    start = "target.path=x: weights and config.json do not fit together: "
    assert str(caught.value) == start + complaint


def test_thousands_of_keys_make_no_book(tmp_path: Path) -> None:
    saved(tmp_path, lambda w, c: w.update({f"x{i:03}": torch.zeros(1) for i in range(45)}))
    with pytest.raises(ConfigError, match=r"surplus x000, .*, x039 and 5 more$"):
        load_strictly("target.path=x", tmp_path)


def test_tied_embeddings_are_not_missed(tmp_path: Path) -> None:
    made = saved(tmp_path, lambda w, c: w.pop("lm_head.weight", None), tie_word_embeddings=True)
    held = load_strictly("x", tmp_path, dtype=torch.float64)
    assert torch.equal(full_logits(held, [1, 2, 3]), full_logits(made, [1, 2, 3]))


def _beside(weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    weights["medusa_head.0.0.linear.weight"] = torch.zeros(2, 2)
    weights[f"model.layers.{LAYERS}.eh_proj.weight"] = torch.zeros(2, 2)
    weights[f"model.layers.{LAYERS}.enorm.weight"] = torch.zeros(2)


def _buffers(weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    weights["transformer.h.0.attn.masked_bias"] = torch.zeros(1)
    weights["transformer.h.0.attn.bias"] = torch.zeros(1, 1, 4, 4)


@pytest.mark.parametrize(("family", "change"), [("llama", _beside), ("gpt2", _buffers)])
def test_known_buffers_and_heads_beside_the_model_are_left_out(
    tmp_path: Path, family: str, change: Change
) -> None:
    made = saved(tmp_path, change, family=family)
    held = load_strictly("x", tmp_path, dtype=torch.float64)
    assert torch.equal(full_logits(held, [1, 2, 3]), full_logits(made, [1, 2, 3]))


def _cut(folder: Path, share: float) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: _cut(folder, 0.5), "Safetensor"),
        (lambda folder: _cut(folder, 0.0), "Safetensor"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "Safetensor"),
        (
            lambda folder: (folder / "config.json").write_text("[1]"),
            "model_type. key in its config.json",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    ],
    ids=["half", "empty", "foreign", "list", "no JSON", "absent"],
)
def test_damaged_files_are_one_line(
    tmp_path: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    saved(tmp_path, lambda w, c: None)
    damage(tmp_path)
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_strictly(f"target.path={tmp_path}", tmp_path)
    assert str(caught.value).startswith(f"target.path={tmp_path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "foo"),
        ("num_attention_heads", 0),
        ("hidden_size", "wide"),
        ("vocab_size", -1),
    ],
)
def test_a_configuration_of_nonsense_is_one_line(tmp_path: Path, key: str, value: Any) -> None:
    saved(tmp_path, lambda w, c: c.update({key: value}))
    with pytest.raises(ConfigError, match=re.escape(f"target.path={tmp_path}: ")) as caught:
        load_strictly(f"target.path={tmp_path}", tmp_path)
    assert "\n" not in str(caught.value)
