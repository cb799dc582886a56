"""Latent attention: DeepSeek-V2 and V3, whose values have another width than their keys."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import pytest
import torch

from specframe.drafter.none import NoDraft
from specframe.target.hf import HF
from tests.small_models import (
    CACHE_MAKERS,
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    decode,
    lm_of,
    tree_of,
)

COUNT = 16
RANKS = {"deepseek_v2": None, "deepseek_v3": 10}  # of the queries


@lru_cache
def plain(kind: str) -> Any:
    import transformers as hf

    config = hf.CONFIG_MAPPING[kind](
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=RANKS[kind],
        kv_lora_rank=12,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=6,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        max_position_embeddings=128,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
        experts_implementation="eager",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = hf.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.dim() > 1:
                weight.mul_(20 if "lm_head" in name else 10)
    return made


@lru_cache
def held(kind: str) -> HF:
    return HF.of(copy.deepcopy(plain(kind)), runtime=RUNTIME)


@lru_cache
def text(kind: str) -> list[int]:
    with torch.no_grad():
        ids = plain(kind).generate(torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False)
    answer: list[int] = ids[0, len(PROMPT) :].tolist()
    return answer


@pytest.mark.parametrize("kind", RANKS)
@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("tree", ["none", "chain", "static"])
def test_text_is_that_of_generate(kind: str, cache: str, tree: str) -> None:
    target = held(kind)
    manager = CACHE_MAKERS[cache]()
    drafter = NoDraft() if tree == "none" else lm_of(held(kind), target, cache)
    made = Composition(
        target=target,
        drafter=drafter,
        tree=tree_of("chain" if tree == "none" else tree),
        cache=manager,
    )
    outcome = decode(made, PROMPT, COUNT)
    assert outcome.tokens == text(kind)
    # The draft model is the target: whole chains are accepted, and paths of the tree.
    assert outcome.num_accepted == {"none": 0, "chain": 12, "static": 10}[tree]


def test_the_cache_keeps_what_is_compressed() -> None:
    cache = CACHE_MAKERS["dynamic"]()
    cache.open(0, columns=64, device=torch.device("cpu"))
    with torch.inference_mode():
        held("deepseek_v3").prefill(PROMPT, cache)
    keys, values = cache.committed(1)  # type: ignore[attr-defined]
    assert keys.shape == (1, 1, len(PROMPT), 12)
    assert values.shape == (1, 1, len(PROMPT), 4)
