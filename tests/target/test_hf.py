"""Loading models of transformers: what is taken, what is refused and how that reads."""

from __future__ import annotations

import copy
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.errors import IncompatibleComponents
from specframe.target.hf import HF, _windows
from tests.small_models import (
    CPU,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    VOCAB,
    WINDOW,
    Composition,
    config,
    decode,
    drafter_of,
    full_logits,
    model,
    oracle,
    prefilled,
    raw,
    target,
    tree_of,
    tree_rows,
)

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def load(path: str | Path, **changes: Any) -> HF:
    options = {
        "dtype": "float64",
        "device_map": None,
        "revision": None,
        "attn_implementation": "sdpa",
        "quantization": None,
        "trust_remote_code": False,
        "draft": None,
    }
    return HF(path=str(path), device=CPU, runtime=RUNTIME, **{**options, **changes})


def tiny(kind: str, **changes: Any) -> Any:
    """A random float64 model of a model type of transformers."""
    import transformers as hf

    made = hf.AutoModelForCausalLM.from_config(hf.CONFIG_MAPPING[kind](**{**SMALL, **changes}))
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.mul_(5)
    return made.double().eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_folder_is_loaded_as_it_was_saved(tmp_path: Path, implementation: str) -> None:
    raw("llama").save_pretrained(tmp_path)
    made = load(tmp_path, attn_implementation=implementation)
    assert made.dtype == torch.float64
    assert made.tokenizer is None
    assert made.eos_ids == ()
    assert made.gives.max_positions == 128
    outcome = decode(
        Composition(target=made, drafter=drafter_of("noisy", "llama"), tree=tree_of("static"))
    )
    assert outcome.tokens == oracle("llama", PROMPT, 16)
    assert load(tmp_path, dtype="auto").dtype == torch.float32


def test_end_tokens_come_from_the_generation_settings(tmp_path: Path) -> None:
    made = model("llama")
    made.config.eos_token_id = 7
    made.generation_config.eos_token_id = [5, 9]
    made.save_pretrained(tmp_path)
    assert load(tmp_path).eos_ids == (5, 9)
    made.generation_config.eos_token_id = None
    assert HF.of(made, runtime=RUNTIME).eos_ids == (7,)


def test_nothing_is_asked_of_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a socket was opened")

    raw("gpt2").save_pretrained(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert load(tmp_path).num_layers == 3


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention"])
def test_attention_without_masks_is_refused(name: str) -> None:
    with pytest.raises(IncompatibleComponents, match=rf"attn_implementation={name} takes no 4-D"):
        load("/nowhere/at/all", attn_implementation=name)


def test_missing_folder_is_named() -> None:
    with pytest.raises(ValueError, match=r"target\.path=/no/such/model: no such folder"):
        load("/no/such/model")


def test_unknown_hub_name_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"target\.path=nobody/nothing: ") as caught:
        load("nobody/nothing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["mamba", "jamba", "recurrent_gemma", "lfm2"])
def test_state_that_cannot_be_rolled_back_is_refused(kind: str, tmp_path: Path) -> None:
    import transformers as hf

    changes = {"layer_types": ["conv", "full_attention", "conv"]} if kind == "lfm2" else {}
    hf.CONFIG_MAPPING[kind](**{**SMALL, **changes}).save_pretrained(tmp_path)
    with pytest.raises(IncompatibleComponents, match=r"\w+ForCausalLM keeps .* cannot be rolled"):
        load(tmp_path)  # there are no weights: it is refused before they would be read


def test_state_of_a_loaded_model_is_refused() -> None:
    with pytest.raises(IncompatibleComponents, match="MambaForCausalLM"):
        HF.of(tiny("mamba"), runtime=RUNTIME)


def test_encoder_decoder_is_refused(tmp_path: Path) -> None:
    import transformers as hf

    hf.T5Config(vocab_size=VOCAB, d_model=16, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"target\.path=.*T5Config") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "changes"),
    [
        ("bloom", "BloomForCausalLM", {}),
        ("mpt", "MptForCausalLM", {"d_model": 32, "n_layers": 3, "n_heads": 4}),
        ("falcon", "FalconForCausalLM", {"alibi": True}),
        ("bert", "BertLMHeadModel", {}),
    ],
)
def test_models_whose_trees_would_be_wrong_are_refused(
    kind: str, name: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(IncompatibleComponents, match=rf"{name} cannot verify a draft tree"):
        HF.of(tiny(kind, **changes), runtime=RUNTIME)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
        ("cohere", {}),
        ("granite", {"logits_scaling": 3.0}),
        ("phi3", {}),
        ("gemma2", {"head_dim": 8, "sliding_window": WINDOW}),
        ("gpt_oss", {"head_dim": 8, "sliding_window": WINDOW, "experts_implementation": "eager"}),
    ],
)
def test_other_families_score_trees_too(kind: str, changes: dict[str, Any]) -> None:
    import copy

    plain = tiny(kind, **changes)
    made = HF.of(copy.deepcopy(plain), runtime=RUNTIME)
    cache = prefilled(made, LONG_PROMPT)
    out = made.forward(
        tree_rows(cache), cache, want=torch.arange(7), taps=("final_postnorm", "resid:3")
    )
    # Gemma 2 caps its scores in float32.
    tolerance = 1e-5 if kind == "gemma2" else 1e-9
    for row, path in ((0, [8]), (2, [8, 12]), (6, [8, 11, 13, 16])):
        expected = full_logits(plain, [*LONG_PROMPT, *path])[-1]
        torch.testing.assert_close(out.logits[row], expected, rtol=0, atol=tolerance)
    with torch.inference_mode():
        head = made.head(out.taps["final_postnorm"])
    torch.testing.assert_close(head, out.logits, rtol=0, atol=1e-9)


def test_layer_types_get_their_own_masks() -> None:
    made = target("gemma3")
    assert set(made._windows) == {"full_attention", "sliding_attention"}
    cache = prefilled(made, LONG_PROMPT)
    rows = tree_rows(cache, (3, 0, 6, 1, 5, 2, 4))
    opened, length = cache.opened(rows), cache.lengths[0]
    full, sliding = (opened.visible(made._windows[kind]) for kind in sorted(made._windows))
    assert rows.sees is not None
    assert full[:, :length].all()
    assert torch.equal(full[:, length:], rows.sees)
    places = torch.arange(full.shape[1])
    places[rows.slots] = rows.positions
    near = rows.positions[:, None] - places < WINDOW  # by position, not by row or slot
    assert torch.equal(sliding, full & near)
    assert int(sliding.sum()) < int(full.sum())


def test_one_mask_where_all_layers_are_alike() -> None:
    assert target("llama")._windows == {"full_attention": None}
    assert _windows(config("mixtral", sliding_window=8)) == {"sliding_attention": 8}
    assert _windows(config("qwen2")) == {"full_attention": None}


@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_window_on_every_layer(family: str) -> None:
    import copy

    changes: dict[str, Any] = {"sliding_window": WINDOW}
    if family == "qwen2":
        changes |= {"use_sliding_window": True, "max_window_layers": 1}
    plain = model(family, **changes)
    made = HF.of(copy.deepcopy(plain), runtime=RUNTIME)
    tokens = list(LONG_PROMPT)
    for _ in range(20):
        tokens.append(int(full_logits(plain, tokens)[-1].argmax()))
    for tree in ("chain", "static"):
        composed = Composition(target=made, drafter=drafter_of("ngram", family), tree=tree_of(tree))
        assert decode(composed, LONG_PROMPT, 20).tokens == tokens[len(LONG_PROMPT) :]


def test_unknown_tap_is_named() -> None:
    cache = prefilled(target("llama"), PROMPT)
    expected = r"no tap 'resid:9' in LlamaForCausalLM: it has embed, .* resid:0 \.\. resid:3"
    with pytest.raises(ValueError, match=expected):
        target("llama").forward(tree_rows(cache), cache, taps=("embed", "resid:9"))


def test_a_model_that_cannot_run_at_all_is_told_so() -> None:
    made = copy.deepcopy(raw("llama"))
    made.model.layers[1].mlp.down_proj.weight = torch.nn.Parameter(torch.zeros(32, 7).double())
    with pytest.raises(IncompatibleComponents, match="its own forward pass fails on two tokens"):
        HF.of(made, runtime=RUNTIME)


def test_a_model_without_an_output_head_is_refused() -> None:
    made = copy.deepcopy(raw("llama")).model
    with pytest.raises(IncompatibleComponents, match="LlamaModel has no output head"):
        HF.of(made, runtime=RUNTIME)
