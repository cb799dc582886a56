"""The sampling law is transformers' own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.accept.rejection import Rejection
from specframe.law.sampling import Sampling, build_sampling
from specframe.law.user_classes import user_class
from tests.small_models import (
    CPU,
    LONG_PROMPT,
    PROMPT,
    VOCAB,
    Composition,
    decode,
    drafter_of,
    full_logits,
    oracle,
    raw,
    sampling_config,
    target,
    tree_of,
)

LAWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"typical_p": 0.5},
    {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95},
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2},
    {"temperature": 0.7, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "top_p": 0.8},
    {"min_new_tokens": 5},
]


def build(changes: dict[str, Any], **more: Any) -> Sampling:
    options = {"prompt_length": len(LONG_PROMPT), "eos": (7, 9), "encode": None}
    settings = sampling_config(**{"temperature": 1.0, **changes})
    return build_sampling(settings, vocabulary=VOCAB, device=CPU, **{**options, **more})


def own_processors(changes: dict[str, Any]) -> Any:
    """What `generate` of transformers would apply."""
    from transformers import GenerationConfig

    settings = GenerationConfig(
        do_sample=True, eos_token_id=[7, 9], **{"temperature": 1.0, "top_k": 0, **changes}
    )
    made = copy.copy(raw("llama"))
    made._prepare_special_tokens(settings, device=CPU)
    return made._get_logits_processor(
        generation_config=settings, input_ids_seq_length=len(LONG_PROMPT), device="cpu"
    )


@pytest.mark.parametrize("changes", LAWS)
def test_law_is_that_of_generate(changes: dict[str, Any]) -> None:
    ids = torch.tensor([[*LONG_PROMPT, 3], [*LONG_PROMPT, 42], [*LONG_PROMPT, 7]])
    logits = full_logits(raw("llama"), LONG_PROMPT)[-3:]
    own = own_processors(changes)
    expected = own(ids, logits.clone()).softmax(-1)
    sampling = build(changes)
    kinds = [type(one) for one in (*sampling.processors, *sampling.warpers)]
    assert kinds == [type(one) for one in own]
    law = sampling.law(ids, logits)
    torch.testing.assert_close(law, expected, rtol=0, atol=1e-12)
    if changes:
        assert not torch.allclose(law, logits.softmax(-1), atol=1e-6)
    # One row at a time gives the same: nodes do not touch each other.
    for row in range(3):
        alone = sampling.law(ids[row : row + 1], logits[row : row + 1])[0]
        torch.testing.assert_close(alone, expected[row], rtol=0, atol=1e-12)


def test_logits_are_left_as_they_were() -> None:
    logits = full_logits(raw("llama"), LONG_PROMPT)[-1:].clone()
    before = logits.clone()
    for changes in LAWS:
        build(changes).law(torch.tensor([LONG_PROMPT]), logits)
    assert torch.equal(logits, before)


def test_low_precision_is_widened() -> None:
    logits = full_logits(raw("llama"), LONG_PROMPT)[-1:].to(torch.bfloat16)
    assert build({"top_p": 0.9}).law(torch.tensor([LONG_PROMPT]), logits).dtype == torch.float32


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    assert build({"temperature": temperature, "top_p": 0.5}).greedy
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("noisy", "llama"),
        tree=tree_of("dynamic"),
        sampling=sampling_config(temperature),
    )
    assert decode(composed).tokens == oracle("llama", PROMPT, 16)


def test_small_temperatures_tend_to_greedy() -> None:
    for accept, how in ((Rejection(), "wor"), (Rejection(), "iid")):
        composed = Composition(
            target=target("llama"),
            drafter=drafter_of("noisy", "llama"),
            tree=tree_of("static", how),
            accept=accept,
            how=how,
            sampling=sampling_config(1e-3),
        )
        assert decode(composed).tokens == oracle("llama", PROMPT, 16)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"sampling\.bad_words needs a target with a tokenizer"):
        build({"bad_words": ["a"]})
    for path in ("nowhere:Thing", "torch:Nothing", "torch", ""):
        with pytest.raises(ValueError, match=rf"sampling\.processors={path}: cannot import it"):
            user_class(path, where="sampling.processors", base="LogitsProcessor")


def test_host_reads_of_processors_are_declared() -> None:
    assert build({"repetition_penalty": 1.2}).host_reads == 0
    assert build({"no_repeat_ngram_size": 2}).host_reads == 1
    assert not build({"top_k": 3}).path_dependent
    assert build({"repetition_penalty": 1.2}).path_dependent


def test_greedy_law_is_one_hot() -> None:
    logits: Tensor = full_logits(raw("llama"), LONG_PROMPT)[-2:]
    law = build({"temperature": 0.0}).law(torch.tensor([LONG_PROMPT] * 2), logits)
    assert torch.equal(law.argmax(-1), logits.argmax(-1))
    assert law.sum(-1).tolist() == [1.0, 1.0]
    assert int((law > 0).sum()) == 2
