"""Weights that torchao quantised: a target like any other, which no runtime lays out anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from specframe import load
from specframe.errors import ConfigError
from tests.small_models import full_logits, model

PROMPT = [3, 1, 4, 1, 5, 3, 1, 4]
INT8 = "{_type: Int8WeightOnlyConfig, _version: 2, _data: {}}"
SCHEME = f"target.quantization={{quant_method: torchao, quant_type: {{default: {INT8}}}}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama in float32."""
    made = tmp_path_factory.mktemp("llama")
    model("llama", hidden_size=64, intermediate_size=96, head_dim=16).float().save_pretrained(made)
    return made


def words(folder: Path, *more: str) -> list[str]:
    """A command over that model; the scheme comes last."""
    own = ["target=hf", f"target.path={folder}", "drafter=oracle", "tree=chain", "raw=true"]
    return [*own, *more, SCHEME]


@pytest.mark.parametrize("runtime", ["eager", "packed"])
def test_the_text_is_that_of_the_quantised_model(folder: Path, runtime: str) -> None:
    engine = load(words(folder, f"runtime={runtime}"))
    target: Any = engine.components.target
    layer = target.model.model.layers[0].mlp.up_proj
    assert type(layer) is nn.Linear
    assert layer.weight.qdata.dtype == torch.int8
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(24):
            tokens.append(int(full_logits(target.model, tokens)[-1].argmax()))
    loop = engine.decoding(max_new_tokens=24)
    found, accepted = loop.begin(PROMPT), 0
    while loop.finish_reason is None:
        record = loop.step()
        found += record.tokens
        accepted += record.num_accepted
    assert found == tokens[len(PROMPT) :]
    assert accepted > 0


def test_a_bad_scheme_is_one_line(folder: Path) -> None:
    wrong = [*words(folder)[:-1], "target.quantization={quant_method: torchao, quant_type: int3}"]
    with pytest.raises(ConfigError, match=r"target\.path=.*: "):
        load(wrong)
