"""GGUF models: the pinned table, the manifest that marks a folder finished, the real default."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from specframe.models import gguf, package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished folder of a model whose weights are nine bytes."""
    (tmp_path / "model.safetensors").write_bytes(b"converted")
    (tmp_path / "config.json").write_text("{}")
    gguf.write_manifest(_model(), tmp_path, "9.9")
    return tmp_path


def _model() -> gguf.GgufModel:
    digest = hashlib.sha256(b"converted").hexdigest()
    return dataclasses.replace(gguf.MODELS["smollm2"], weights_sha256=digest)


def test_the_table_pins_every_part_once() -> None:
    for name, model in gguf.MODELS.items():
        assert name == model.name
        assert len(model.requirements) == len(model.parts) == len(set(model.requirements))
        assert all("==" in requirement for requirement in model.requirements)
        assert len(model.sha256) == len(model.weights_sha256) == 64


def test_a_whole_folder_is_finished(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert gguf.is_finished(_model(), folder)
    assert caplog.text == ""


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", gguf.MANIFEST])
def test_a_lost_or_cut_file_is_noticed(folder: Path, file: str) -> None:
    (folder / file).write_bytes(b"{")
    assert not gguf.is_finished(_model(), folder)
    (folder / file).unlink()
    assert not gguf.is_finished(_model(), folder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_was_overwritten_in_place_is_noticed(folder: Path, file: str) -> None:
    kept = (folder / file).read_bytes()
    with (folder / file).open("r+b") as opened:
        opened.write(b"#")
    assert (folder / file).stat().st_size == len(kept)
    assert not gguf.is_finished(_model(), folder)
    (folder / file).write_bytes(kept)
    assert gguf.is_finished(_model(), folder)


def test_an_earlier_conversion_is_known_by_its_weights(folder: Path) -> None:
    manifest = json.loads((folder / gguf.MANIFEST).read_text())
    assert manifest.pop("sha256")["config.json"] == hashlib.sha256(b"{}").hexdigest()
    (folder / gguf.MANIFEST).write_text(json.dumps(manifest))
    assert gguf.is_finished(_model(), folder)
    (folder / "model.safetensors").write_bytes(b"Converted")
    assert not gguf.is_finished(_model(), folder)


def test_the_conversion_of_another_file_is_not_taken(folder: Path) -> None:
    assert not gguf.is_finished(dataclasses.replace(_model(), sha256="0" * 64), folder)


def test_other_weights_are_warned_about(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "model.safetensors").write_bytes(b"other")
    gguf.write_manifest(_model(), folder, "9.9")
    assert "transformers 9.9 converts to weights" in caplog.text


def test_smollm2_speaks() -> None:
    """The real default model: tokenizer round trip, chat template, end of text, greedy words."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = package.local_folder("package://smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "  def f(x):\n    return x**2  # 12345, Grüße 日本語"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert network.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    prompt: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = network.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
