"""A Llama of random weights: any shape, the same weights for a seed, texts with wide margins."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe.errors import ConfigError
from specframe.session.engine import Engine
from specframe.target.random import Bytes, _made
from specframe.task.benchmark.quality import text_logits

SMALL = (
    *("target=random", "target.layers=2", "target.hidden=64", "target.intermediate=96"),
    *("target.vocab_size=300", "tree=chain", "max_new_tokens=24"),
)


def load(*words: str) -> Engine:
    return specframe.load([*SMALL, "drafter=none", *words])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_texts_count_upwards_with_wide_margins(dtype: str) -> None:
    engine = load(f"target.dtype={dtype}", "target.vocab_size=110")
    made = engine.generate("Hallo")
    start = made.prompt_tokens[-1] + 1
    assert made.tokens == [(start + place) % 110 for place in range(24)]
    logits = torch.cat(text_logits(engine, made.prompt_tokens, made.tokens)).float()
    best, second = logits.topk(2).values.unbind(1)
    # Neighbours in bfloat16 are 1/128 apart.
    assert ((best - second) / best).min() > 0.2


def test_margins_stay_wide_where_the_model_is_deep() -> None:
    shape = {"num_hidden_layers": 24, "hidden_size": 96, "intermediate_size": 256}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000}
    model = _made(shape, torch.float32, torch.device("cpu"), 0)
    with torch.inference_mode():
        logits = model(torch.arange(50, 90)[None]).logits[0]
    best, second = logits.topk(2).values.unbind(1)
    assert logits.argmax(1).tolist() == list(range(51, 91))
    assert ((best - second) / best).min() > 0.1


def test_a_seed_makes_the_weights() -> None:
    before = torch.random.get_rng_state()
    weights = [
        load(f"target.seed={seed}", "target.dtype=float64").components.target.head(
            torch.eye(64).double()
        )
        for seed in (3, 3, 4)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.random.get_rng_state(), before), "nobody else's noise is touched"


def test_an_oracle_drafts_for_it() -> None:
    engine = specframe.load([*SMALL, "drafter=oracle", "drafter.rates=[1.0]", "tree.depth=3"])
    assert engine.generate("abc").tokens == load().generate("abc").tokens
    assert engine.components.drafter.traits.synthetic


def test_text_of_bytes() -> None:
    tokenizer = Bytes(300)
    assert tokenizer.encode("aé") == [97, 195, 169]
    assert tokenizer.decode([97, 10, 299]) == "a<10><299>"
    assert len(tokenizer.vocabulary()) == 300
    assert max(Bytes(20).encode("zebra")) < 20


def test_shapes_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match=r"target\.heads=3 must divide target\.hidden=64"):
        load("target.heads=3")
