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
from specframe.session import shared_pass
from specframe.target import base
from specframe.target.hf import HF
from specframe.testing.tiny_models import full_logits, model
from specframe.training.feature_cache import FeatureReader
from specframe.training.samples import TrainingSample
from tests.runtime.test_packed import runtime as packed
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
def test_blocks_in_one_call_read_the_same_table(kind: str) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    scaling = KINDS[kind]["rope_parameters"] | {"short_factor": [1.0] * 8}
    scaling |= {"long_factor": [4.0 + place for place in range(8)]}
    made = model("llama", **{**KINDS[kind], **wide, "rope_parameters": scaling}).float()
    found = []
    for runtime in (RUNTIME, packed()):
        target = HF.of(copy.deepcopy(made), runtime=runtime)
        assert (target._trunk is None) == (runtime is RUNTIME)
        for reach in (30, 60):
            cache = DynamicCache()
            cache.open(0, columns=30, device=torch.device("cpu"))
            cache.reach[0] = reach
            with torch.inference_mode():
                found.append(target.prefill(PROMPT[:12], cache).logits[0])
    for ours, theirs in ((found[2], found[0]), (found[3], found[1])):
        assert (ours - theirs).abs().max() < 1e-4 * theirs.std()
    same = torch.equal(found[0], found[1])
    assert same == (kind == "longrope"), "both lengths are beyond the border"


def test_a_launch_is_told_which_table_a_pass_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    target, keys = held("longrope"), []

    class Launch:
        def wrap(self, run: Any, key: Any) -> Any:
            keys.append(key)
            return run

    monkeypatch.setattr(target, "_launch", Launch())
    for reach in (BORDER, BORDER + 1, BORDER + 9):
        cache = DynamicCache()
        cache.open(0, columns=40, device=torch.device("cpu"))
        cache.reach[0] = reach
        with torch.inference_mode():
            for token in PROMPT[:2]:  # the first pass makes the buffers
                target.prefill([token], cache)
    short, long, longer = keys
    assert short != long and long == longer


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


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_on_both_sides_of_the_border_keep_their_tables(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share no pass; those of one table do. In one pass for all, a text would be another's."""
    made = held(kind)
    composition = Composition(target=made, drafter=lm_of(made, made), tree=tree_of("chain"))
    engine = composition.engine(4)
    prompts = [list(PROMPT), list(PROMPT[:9]), list(PROMPT[3:38]), list(PROMPT[5:12])]
    alone = [engine.generate(prompt).tokens for prompt in prompts]
    together = engine.generate(prompts, batch_size=4)
    assert [answer.tokens for answer in together] == alone
    monkeypatch.setattr(shared_pass, "table_of", lambda target, reach: None)
    mixed = engine.generate([*prompts[1:], prompts[0]], batch_size=4)
    assert [answer.tokens for answer in mixed] != [*alone[1:], alone[0]]


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


def test_logn_attention_is_refused() -> None:
    made = copy.deepcopy(plain("longrope"))
    made.config.use_logn_attn = True
    with pytest.raises(IncompatibleComponents, match="use_logn_attn=true, which changes attention"):
        HF.of(made, runtime=RUNTIME)


def test_a_family_that_scales_its_table_by_itself_is_refused() -> None:
    import transformers as hf

    config = hf.PhimoeConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
        max_position_embeddings=4 * BORDER,
        rope_parameters={**LONGROPE, "short_mscale": 1.2, "long_mscale": 1.3},
        sliding_window=None,
        experts_implementation="eager",
    )
    made = hf.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.mul_(10)
    with pytest.raises(IncompatibleComponents, match="by the largest position in its pass"):
        HF.of(made, runtime=RUNTIME)
