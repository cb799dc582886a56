"""certify sees arithmetic that depends on the pass in which a row stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.target.base import Forward
from specframe.task.certify.pass_checks import ByLargestPosition, passes_agree
from specframe.testing.tiny_models import TINY
from tests.small_models import target, toy

TEXT = (5, 17, 42, 8, 3)


class DynamicTables(torch.nn.Module):
    """Rotary tables of transformers' `dynamic` type, which a pass beyond `original` changes."""

    def __init__(self, rotary: Any, original: int) -> None:
        super().__init__()
        self.rotary, self.original = rotary, original

    def forward(self, x: Tensor, position_ids: Tensor, *args: Any) -> Any:
        stretched = max(1.0, float(position_ids.max() + 1) / self.original)
        kept = self.rotary.inv_freq.clone()
        self.rotary.inv_freq /= stretched
        tables = self.rotary(x, position_ids, *args)
        self.rotary.inv_freq.copy_(kept)
        return tables


@pytest.mark.parametrize("family", TINY)
def test_a_target_computes_the_same_in_any_pass(family: str) -> None:
    check = passes_agree(target(family), TEXT, max_gap=0.5)
    assert check.passed is True
    assert check.caught is True
    assert max(check.numbers["gaps"].values()) < 1e-8
    assert set(check.numbers["gaps"]) == {"two", "chunks", "token by token"}


@pytest.mark.parametrize("original", [7, 64, 127, 128])
def test_tables_by_the_largest_position_of_a_pass_are_seen(
    original: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the tables change: only what starts behind the last position never shows."""
    made: Any = target("llama")
    core = made.model.model
    monkeypatch.setitem(core._modules, "rotary_emb", DynamicTables(core.rotary_emb, original))
    check = passes_agree(made, TEXT, max_gap=0.5)
    assert check.passed is (original == 128)
    assert (max(check.numbers["gaps"].values()) > 1e-3) is (original < 128)


def test_transformers_own_dynamic_type_is_seen() -> None:
    """Of a bare model: what a target makes of it is the target's matter."""
    from specframe.testing.tiny_models import config, full_logits, model

    scaling = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    made = model("llama", rope_parameters=scaling, max_position_embeddings=16)
    assert config("llama", rope_parameters=scaling).rope_parameters["rope_type"] == "dynamic"
    text = [(7 * place + 3) % 97 for place in range(24)]
    late, early = full_logits(made, text)[:12], full_logits(made, text[:12])
    assert float((late - early).abs().max()) > 1e-3


def test_half_precision_reports() -> None:
    class Half:
        """The toy, called half."""

        def __init__(self, noise: float) -> None:
            self.toy, self.noise = toy(), noise
            self.dtype, self.device = torch.bfloat16, torch.device("cpu")
            self.gives = self.toy.gives

        def forward(self, rows: Any, cache: Any, *, want: Tensor) -> Forward:
            out = self.toy.forward(rows, cache, want=want)
            return Forward(logits=out.logits + self.noise * len(want) / 12, hidden=out.hidden)

    quiet: Any = Half(0.1)
    assert passes_agree(quiet, (1, 2), max_gap=0.5).passed is None
    loud: Any = Half(3.0)
    assert passes_agree(loud, (1, 2), max_gap=0.5).passed is False
    assert ByLargestPosition.title == passes_agree(loud, (1, 2), max_gap=0.5).control
