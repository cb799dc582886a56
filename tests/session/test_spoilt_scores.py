"""Processors that give what is no number end the answer with their name, not with a wrong text."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from specframe import load
from specframe.errors import ConfigError
from tests.user_modules import written

MODULE = '''
import torch

class Spoils:
    """Gives NaN for one token once a text is so long."""
    length = 0

    def __call__(self, ids, scores):
        if ids.shape[1] >= self.length:
            scores = scores.clone()
            scores[:, 1] = float("nan")
        return scores
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = written(MODULE, stem="spoilt", folder=tmp_path, patch=monkeypatch)
    return importlib.import_module(name)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("words", [("drafter=none",), ("drafter=lm", "tree=static")])
@pytest.mark.parametrize("length", [0, 7])
def test_nan_of_a_processor_is_named(
    module: Any, words: tuple[str, ...], temperature: int, length: int
) -> None:
    """In the prefill and in a step; without it the same engine goes on."""
    processor = f"sampling.processors=['{module.__name__}:Spoils']"
    engine = load(
        [
            "target=toy",
            "max_new_tokens=12",
            f"sampling.temperature={temperature}",
            processor,
            *words,
        ]
    )
    module.Spoils.length = length
    with pytest.raises(ConfigError, match=r"sampling\.processors gave scores that are not a numb"):
        engine.generate([0, 1, 2])
    module.Spoils.length = 99
    assert len(engine.generate([0, 1, 2]).tokens) == 12
