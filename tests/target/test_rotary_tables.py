"""Rotary tables that follow the length of a text: one for a whole text, whatever a pass holds."""

from __future__ import annotations

import copy
from functools import lru_cache
from types import MethodType
from typing import Any

import pytest
import torch

from specframe.cache.dynamic import DynamicCache
from specframe.drafter.none import NoDraft
from specframe.errors import IncompatibleComponents
from specframe.target import base
from specframe.target.hf import HF
from specframe.testing.tiny_models import full_logits, model
from specframe.training.feature_cache import FeatureReader
from specframe.training.samples import TrainingSample
from tests.small_models import RUNTIME, VOCAB, Composition, decode, lm_of, prefilled, tree_of

BORDER = 24  # tokens of the training
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 7.0, 9.0, 16.0],
    "original_max_position_embeddings": BORDER,
    "factor": 4.0,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
KINDS = {
    "longrope": {"max_position_embeddings": 4 * BORDER, "rope_parameters": LONGROPE},
    "dynamic": {"max_position_embeddings": BORDER, "rope_parameters": DYNAMIC},
}
PROMPT = tuple((7 * place + 3) % VOCAB for place in range(40))


@lru_cache
def plain(kind: str) -> Any:
    return model("llama", **KINDS[kind])


@lru_cache
def held(kind: str) -> HF:
    return HF.of(copy.deepcopy(plain(kind)), runtime=RUNTIME)


def fixed(kind: str, reach: int) -> Any:
    """The model with the table of a text that comes to `reach`, and no choice of its own."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made = copy.deepcopy(plain(kind))
    rotary = made.model.rotary_emb
    rotary.inv_freq = ROPE_INIT_FUNCTIONS[kind](made.config, None, seq_len=reach)[0].double()
    rotary.rope_type = "default"
    return made


def greedy(made: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(full_logits(made, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [40, 16])
def test_prompt_in_several_passes_is_read_with_one_table(
    kind: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PREFILL_ROWS", 11)
    made, cache = held(kind), DynamicCache()
    cache.open(0, columns=40, device=torch.device("cpu"))
    with torch.inference_mode():
        logits = made.prefill(PROMPT[:length], cache).logits[0]
    expected = full_logits(fixed(kind, length), PROMPT[:length])[-1]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
    assert cache.reach == [length]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_across_the_border_keep_the_text(kind: str) -> None:
    """The whole text has the table of where it may end, so plain and drafted texts agree."""
    target, prompt, count = held(kind), PROMPT[:16], 20
    text = greedy(fixed(kind, 35), prompt, count)
    assert text != greedy(plain(kind), prompt, count), "the table must matter"
    perfect = lm_of(HF.of(copy.deepcopy(plain(kind)), runtime=RUNTIME), target)
    for drafter, tree in ((NoDraft(), "chain"), (perfect, "chain"), (perfect, "static")):
        made = Composition(target=target, drafter=drafter, tree=tree_of(tree))
        outcome = decode(made, prompt, count)
        assert outcome.tokens == text
        if drafter is perfect and tree == "chain":
            assert [len(record.path) for record in outcome.records] == [4, 4, 4, 3]


def test_text_that_ends_at_the_border_is_that_of_transformers() -> None:
    short = decode(Composition(target=held("longrope"), drafter=NoDraft()), PROMPT[:16], 9)
    with torch.no_grad():
        ids = plain("longrope").generate(torch.tensor([PROMPT[:16]]), max_new_tokens=9)
    assert short.tokens == ids[0, 16:].tolist()  # its last key is at position 24
    assert short.tokens == greedy(fixed("longrope", BORDER), PROMPT[:16], 9)
    longer = decode(Composition(target=held("longrope"), drafter=NoDraft()), PROMPT[:16], 10)
    assert longer.tokens == greedy(fixed("longrope", BORDER + 1), PROMPT[:16], 10)
    assert longer.tokens[:9] != short.tokens


def test_calls_from_outside_choose_as_transformers_does() -> None:
    made = held("longrope")
    prefilled(made, PROMPT[:4])
    for length in (10, 40):
        expected = full_logits(plain("longrope"), PROMPT[:length])
        torch.testing.assert_close(full_logits(made.model, PROMPT[:length]), expected)


def test_dynamic_tables_stretch_over_the_factor() -> None:
    assert held("dynamic").gives.max_positions == 4 * BORDER
    assert held("longrope").gives.max_positions == 4 * BORDER


def test_features_of_a_sample_do_not_depend_on_its_batch() -> None:
    samples = [
        TrainingSample(id="a", category="", tokens=torch.tensor(PROMPT[:length]), start=2)
        for length in (9, 30)
    ]
    reader = FeatureReader(target=held("longrope"), taps=("final_postnorm",), dtype=torch.float64)
    together = reader.rows(samples)
    for sample, rows in zip(samples, together, strict=True):
        torch.testing.assert_close(rows, reader.rows([sample])[0], rtol=0, atol=1e-9)


def test_a_model_with_a_table_of_its_own_is_refused() -> None:
    made = copy.deepcopy(plain("longrope"))
    rotary = made.model.rotary_emb

    def by_length(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        scale = 1.0 if int(position_ids.max()) < BORDER else 3.0
        angles = position_ids[..., None].double() * self.inv_freq
        both = torch.cat([angles, angles], dim=-1)
        return both.cos() * scale, both.sin() * scale

    rotary.forward = MethodType(by_length, rotary)
    rotary.rope_type = "own"
    with pytest.raises(IncompatibleComponents, match="by the largest position in its pass"):
        HF.of(made, runtime=RUNTIME)
