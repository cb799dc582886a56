"""Heads that are no heads, or were changed: each is one clear line, before anything is drafted."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import specframe
from specframe.errors import ConfigError
from specframe.heads.eagle_export import save_eagle
from specframe.heads.eagle_file import load_eagle, load_eagle3
from specframe.heads.embeddings import read_ids
from specframe.heads.medusa_file import load_medusa, save_medusa
from specframe.heads.mtp_file import load_mtp, save_mtp
from tests.heads.small_heads import eagle3_net, eagle_net, mtp_net
from tests.heads.small_medusa_heads import medusa_net
from tests.small_models import VOCAB, model

LOADERS: dict[str, Callable[[str], Any]] = {
    "eagle": load_eagle,
    "eagle3": load_eagle3,
    "medusa": load_medusa,
    "mtp": load_mtp,
}
Change = Callable[[dict[str, Tensor], dict[str, Any]], object]


def saved(kind: str, folder: Path, change: Change) -> str:
    """A small head whose weights and configuration were changed."""
    if kind == "medusa":
        save_medusa(medusa_net(), folder)
    elif kind == "mtp":
        save_mtp(mtp_net(), folder)
    else:
        save_eagle(eagle_net() if kind == "eagle" else eagle3_net(), folder)
    (file,) = folder.glob("*.safetensors")
    weights, config = load_file(file), json.loads((folder / "config.json").read_text())
    change(weights, config)
    save_file(weights, file)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def refusal(kind: str, path: str) -> str:
    """The one line with which a head is refused, without the key and the path."""
    with pytest.raises(ConfigError) as caught:
        LOADERS[kind](path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"drafter.path={path}")
    return text.removeprefix(f"drafter.path={path}").removeprefix(": ")


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("name", ["passwd", "x.bin", "x.pt", "x.safetensors"])
@pytest.mark.parametrize("content", [b"root:x:0:0:root:/root:/bin/bash\n", b"", b"\x80\x02}q\x00."])
def test_a_file_that_is_no_checkpoint(kind: str, name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    if content[:1] == b"\x80" and name != "x.safetensors":
        return  # an empty mapping, which lacks every key
    assert refusal(kind, str(tmp_path / name)).startswith(f"{name} cannot be read as tensors (")


@pytest.mark.parametrize("content", [{1: torch.zeros(2)}, [torch.zeros(2)], {"a": {"b": 1}}])
def test_a_file_of_other_things(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pt")
    for kind in LOADERS:
        assert refusal(kind, str(tmp_path / "x.pt")) == "x.pt holds more than tensors by name"
    (tmp_path / "y.pt").write_bytes(pickle.dumps(len))
    assert "cannot be read as tensors (UnpicklingError" in refusal("eagle", str(tmp_path / "y.pt"))


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_refused(kind: str, value: float, tmp_path: Path) -> None:
    places: list[str] = []

    def change(weights: dict[str, Tensor], config: dict[str, Any]) -> None:
        places.append(sorted(key for key, one in weights.items() if one.is_floating_point())[0])
        weights[places[0]].view(-1)[3] = value

    path = saved(kind, tmp_path, change)
    assert refusal(kind, path) == f"values are not finite (NaN or infinite): {places[0]}"


@pytest.mark.parametrize("kind", LOADERS)
def test_weights_of_whole_numbers_are_refused(kind: str, tmp_path: Path) -> None:
    def change(weights: dict[str, Tensor], config: dict[str, Any]) -> None:
        key = sorted(key for key, one in weights.items() if one.dim() == 2)[0]
        weights[key] = weights[key].int()

    text = refusal(kind, saved(kind, tmp_path, change))
    assert re.fullmatch(r"dtypes are of another kind than expected: \S+ int32", text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool])
def test_a_map_that_is_no_map(dtype: torch.dtype, tmp_path: Path) -> None:
    path = saved("eagle3", tmp_path, lambda w, c: w.update(d2t=w["d2t"].to(dtype)))
    name = str(dtype).removeprefix("torch.")
    assert refusal("eagle3", path).startswith(f"d2t is of {name}, not of whole numbers; d2t must")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_map_of_any_whole_numbers_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    path = saved("eagle3", tmp_path, lambda w, c: w.update(d2t=w["d2t"].to(dtype)))
    assert torch.equal(load_eagle3(path).target_ids(), eagle3_net().target_ids())


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
@pytest.mark.parametrize(
    ("key", "value", "kind_of_value"),
    [
        ("num_attention_heads", "four", "a positive whole number"),
        ("num_attention_heads", 0, "a positive whole number"),
        ("head_dim", 2.5, "a positive whole number"),
        ("head_dim", True, "a positive whole number"),
        ("vocab_size", "many", "a positive whole number"),
        ("rms_norm_eps", "small", "a positive number"),
        ("rms_norm_eps", -1e-6, "a positive number"),
        ("rope_theta", "abc", "a positive number"),
        ("rope_scaling", ["llama3"], "a mapping"),
    ],
)
def test_a_configuration_of_nonsense(
    kind: str, key: str, value: Any, kind_of_value: str, tmp_path: Path
) -> None:
    path = saved(kind, tmp_path, lambda w, c: c.update({key: value}))
    assert refusal(kind, path) == f"config.json has {key}={value!r}; expected {kind_of_value}"


def test_a_scaling_without_its_numbers(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0}
    path = saved("eagle", tmp_path, lambda w, c: c.update(rope_scaling=scaling))
    expected = "config.json lacks low_freq_factor; expected a positive number"
    assert refusal("eagle", path) == expected


def test_taps_that_are_no_numbers(tmp_path: Path) -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    path = saved("eagle3", tmp_path, lambda w, c: c.update({key: ["low", 2, 3]}))
    assert "expected a list of block numbers" in refusal("eagle3", path)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
@pytest.mark.parametrize(
    ("key", "size"),
    [("hidden_size", 32), ("intermediate_size", 48), ("num_key_value_heads", 2)],
)
def test_a_configuration_that_contradicts_the_weights(
    kind: str, key: str, size: int, tmp_path: Path
) -> None:
    path = saved(kind, tmp_path, lambda w, c: c.update({key: size + 1}))
    text = f"config.json has {key}={size + 1}, the weights have {size}; they are of two heads"
    assert refusal(kind, path).startswith(text)


@pytest.mark.parametrize(("key", "size"), [("draft_vocab_size", 40), ("vocab_size", VOCAB)])
def test_sizes_of_eagle3_that_contradict_the_weights(key: str, size: int, tmp_path: Path) -> None:
    path = saved("eagle3", tmp_path, lambda w, c: c.update({key: size + 1}))
    assert refusal("eagle3", path).startswith(f"config.json has {key}={size + 1}, the weights have")


def _other_vocabulary(weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    config["vocab_size"] = VOCAB + 3
    weights.pop("t2d", None)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_a_head_of_another_vocabulary(kind: str, tmp_path: Path) -> None:
    model("llama").save_pretrained(tmp_path / "target")
    path = saved(kind, tmp_path / "head", _other_vocabulary)
    words = ["target=hf", f"target.path={tmp_path / 'target'}", "target.dtype=float64"]
    words += [f"drafter={kind}", f"drafter.path={path}"]
    words += ["drafter.layers=[1,2,3]"] if kind == "eagle3" else []
    with pytest.raises(
        ConfigError, match=rf"for a vocabulary of {VOCAB + 3} tokens .* has {VOCAB}"
    ):
        specframe.load(words)


def test_a_vocabulary_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    for content in (b"\xff\xfe\x00", b"[" * 100_000, b'{"a": 1}', b"[1.5, []]"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"drafter\.vocabulary=.*: expected token ids"):
            read_ids(str(file), vocab_size=9, where="drafter.vocabulary")


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[1]", "3"])
def test_a_configuration_that_is_no_mapping(content: str, tmp_path: Path) -> None:
    path = saved("eagle", tmp_path, lambda w, c: None)
    (tmp_path / "config.json").write_text(content)
    assert re.match(r"config\.json (is no JSON|holds no mapping)", refusal("eagle", path))
