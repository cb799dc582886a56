"""Blocks under control: taps, partial layers and skipped parts against the model's own passes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.target import base
from specframe.target.hf import HF
from tests.small_models import (
    CACHE_MAKERS,
    CPU,
    LAYERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    TINY,
    TREE_TOKENS,
    full_logits,
    model,
    prefilled,
    raw,
    target,
    tree_paths,
    tree_rows,
)

TAPS = ("embed", *(f"resid:{i}" for i in range(LAYERS + 1)), "final_prenorm", "final_postnorm")
SHUFFLED = (3, 0, 6, 1, 5, 2, 4)


@torch.no_grad()
def own_states(made: Any, tokens: list[int]) -> dict[str, Tensor]:
    """Hidden states [T, H] by the model's own report and by a hook on its last block."""
    blocks = made.transformer.h if hasattr(made, "transformer") else made.model.layers
    left: list[Any] = []
    hook = blocks[-1].register_forward_hook(lambda block, given, out: left.append(out))
    out = made(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    hook.remove()
    last = (left[0][0] if isinstance(left[0], tuple) else left[0])[0]
    states = {f"resid:{i}": state[0] for i, state in enumerate(out.hidden_states[:-1])}
    states |= {"embed": states["resid:0"], f"resid:{LAYERS}": last, "final_prenorm": last}
    return {**states, "final_postnorm": out.hidden_states[-1][0]}


def near(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("rows", [512, 5])
@pytest.mark.parametrize("family", TINY)
def test_taps_of_a_prompt(family: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PREFILL_ROWS", rows)
    made, cache = target(family), CACHE_MAKERS["dynamic"]()
    cache.open(0, columns=32, device=CPU)
    with torch.inference_mode():
        out = made.prefill(LONG_PROMPT, cache, taps=TAPS)
        head = made.head(out.taps["final_postnorm"])
    expected = own_states(raw(family), list(LONG_PROMPT))
    assert list(out.taps) == list(TAPS)
    for name in TAPS:
        near(out.taps[name], expected[name])
    logits = full_logits(raw(family), LONG_PROMPT)
    near(out.logits, logits[-1:])
    near(head, logits)
    assert not torch.allclose(out.taps["final_prenorm"], out.taps["final_postnorm"])


@pytest.mark.parametrize("family", TINY)
def test_taps_of_a_verify_pass(family: str) -> None:
    made = target(family)
    cache = prefilled(made, LONG_PROMPT)
    every = torch.arange(len(TREE_TOKENS))
    out = made.forward(tree_rows(cache), cache, taps=TAPS, want=every)
    near(made.head(out.taps["final_postnorm"].clone()), out.logits)
    near(out.hidden, out.taps["final_prenorm"])
    for row, path in enumerate(tree_paths()):
        tokens = [*LONG_PROMPT, *(TREE_TOKENS[one] for one in path)]
        expected = own_states(raw(family), tokens)
        for name in TAPS:
            near(out.taps[name][row], expected[name][-1])


@pytest.mark.parametrize("family", TINY)
def test_logits_only_of_the_rows_wanted(family: str) -> None:
    made = target(family)
    cache = prefilled(made, PROMPT)
    rows = tree_rows(cache)
    some = torch.tensor([5, 0, 2])
    every = made.forward(rows, cache, want=torch.arange(7)).logits
    found = made.forward(rows, cache, want=some).logits
    assert found.shape == (3, made.vocab_size)
    near(found, every[some])
    without = made.forward(rows, cache)
    assert without.logits is None
    assert without.hidden.shape == (7, 32)


@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT])
@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("family", TINY)
def test_layers_resumed_on_a_tree_equal_a_full_pass(
    family: str, cache: str, prompt: tuple[int, ...]
) -> None:
    for exit_layer in range(1, LAYERS):
        made = HF.of(copy.deepcopy(raw(family)), runtime=RUNTIME)  # no full pass before
        held = prefilled(made, prompt, cache)
        rows = tree_rows(held, SHUFFLED)
        # The lower layers see the tree piece by piece, as it grows.
        pieces = []
        for piece in (torch.tensor([0]), torch.tensor([1, 2]), torch.tensor([3, 4, 5, 6])):
            part = replace(
                rows,
                tokens=rows.tokens[piece],
                positions=rows.positions[piece],
                slots=rows.slots[piece],
                prefix=rows.prefix[piece],
                sees=rows.sees[piece],
            )
            pieces.append(made.forward(part, held, layers=(0, exit_layer)).hidden)
        rest = replace(rows, tokens=None, hidden=torch.cat(pieces))
        every = torch.arange(7)
        out = made.forward(rest, held, layers=(exit_layer, LAYERS), want=every, taps=TAPS[-1:])
        for row, path in enumerate(tree_paths()):
            tokens = [*prompt, *(TREE_TOKENS[one] for one in path)]
            near(out.logits[row], full_logits(raw(family), tokens)[-1], 1e-12)
        near(made.head(out.taps["final_postnorm"].clone()), out.logits, 1e-12)
        # Keys of all layers are written where the slots say.
        again = prefilled(made, prompt, cache)
        made.forward(tree_rows(again, SHUFFLED), again)
        for layer in range(LAYERS):
            stop = held.extents[0]
            near(held._keys[layer][:, :, :stop], again._keys[layer][:, :, :stop], 1e-12)


@pytest.mark.parametrize("family", TINY)
def test_first_pass_of_a_model_may_be_partial(family: str) -> None:
    made = HF.of(copy.deepcopy(raw(family)), runtime=RUNTIME)
    cache = CACHE_MAKERS["dynamic"]()
    cache.open(0, columns=32, device=CPU)
    rows = tree_rows(cache)
    lower = made.forward(rows, cache, layers=(0, 1))
    upper = replace(rows, tokens=None, hidden=lower.hidden)
    out = made.forward(upper, cache, layers=(1, LAYERS), want=torch.tensor([0]))
    near(out.logits[0], full_logits(raw(family), TREE_TOKENS[:1])[-1], 1e-12)


@pytest.mark.parametrize("family", TINY)
def test_early_logits_pass_norm_and_head(family: str) -> None:
    made = target(family)
    cache = prefilled(made, PROMPT)
    out = made.forward(
        tree_rows(cache), cache, layers=(0, 1), want=torch.tensor([6]), taps=("final_postnorm",)
    )
    near(out.logits[0], made.head(out.taps["final_postnorm"][6].clone()))
    deeper = made.forward(tree_rows(cache), cache, want=torch.tensor([6]))
    assert not torch.allclose(out.logits, deeper.logits)


def silenced(family: str) -> Any:
    """A copy whose attention of block 1 and feed-forward part of block 0 write zeros."""
    made = copy.deepcopy(raw(family))
    blocks = made.transformer.h if family == "gpt2" else made.model.layers
    attention = blocks[1].attn if family == "gpt2" else blocks[1].self_attn
    with torch.no_grad():
        for part in (attention, blocks[0].mlp):
            for name, weight in part.named_parameters():
                if any(key in name for key in ("o_proj", "c_proj", "down_proj")):
                    weight.zero_()
    return made


@pytest.mark.parametrize("family", TINY)
def test_skipped_parts_write_nothing(family: str) -> None:
    made, without = target(family), silenced(family)
    skip = frozenset({"attention:1", "mlp:0"})
    cache = CACHE_MAKERS["dynamic"]()
    cache.open(0, columns=64, device=CPU)
    out = made.forward(tree_rows(cache), cache, skip=skip, want=torch.arange(7))
    for row, path in enumerate(tree_paths()):
        tokens = [TREE_TOKENS[one] for one in path]
        near(out.logits[row], full_logits(without, tokens)[-1], 1e-12)
    plain = made.forward(tree_rows(cache), cache, want=torch.arange(7))
    assert (plain.logits - out.logits).abs().max() > 1e-3
    assert 1 in cache._keys


@pytest.mark.parametrize("family", TINY)
def test_the_models_own_generate_is_untouched(family: str) -> None:
    made = HF.of(copy.deepcopy(raw(family)), runtime=RUNTIME)
    ids = torch.tensor([LONG_PROMPT])
    more: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = raw(family).generate(ids, **more)
    assert torch.equal(made.model.generate(ids, **more), expected)
    cache = prefilled(made, PROMPT)
    made.forward(tree_rows(cache), cache, skip=frozenset({"mlp:0"}), layers=(0, 2))
    assert torch.equal(made.model.generate(ids, **more), expected)
    with pytest.raises(IndexError):
        made.forward(replace(tree_rows(cache), tokens=torch.full((7,), 10_000)), cache)
    assert torch.equal(made.model.generate(ids, **more), expected)  # after a failure too


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_tap_numbers_on_models_of_any_depth(layers: int) -> None:
    made = HF.of(model("llama", num_hidden_layers=layers), runtime=RUNTIME)
    cache = CACHE_MAKERS["dynamic"]()
    cache.open(0, columns=8, device=CPU)
    names = [f"resid:{i}" for i in range(layers + 1)]
    with torch.inference_mode():
        out = made.prefill(PROMPT, cache, taps=names)
    near(out.taps["resid:0"], made.embed(torch.tensor(PROMPT)).detach())
    norm: Callable[[Tensor], Tensor] = made.model.model.norm
    with torch.inference_mode():
        near(made.head(norm(out.taps[f"resid:{layers}"]))[-1:], out.logits)
    with pytest.raises(ValueError, match=rf"no tap 'resid:{layers + 1}' in LlamaForCausalLM: .*"):
        made.prefill(PROMPT, cache, taps=[f"resid:{layers + 1}"])


@pytest.mark.parametrize("family", TINY)
def test_no_layer_at_all_is_norm_and_head(family: str) -> None:
    made = target(family)
    cache = prefilled(made, PROMPT)
    rows = tree_rows(cache)
    every = torch.arange(7)
    full = made.forward(rows, cache, want=every, taps=TAPS)
    done = replace(rows, tokens=None, hidden=full.hidden)
    taps = (f"resid:{LAYERS}", "final_prenorm", "final_postnorm")
    out = made.forward(done, cache, layers=(LAYERS, LAYERS), want=every, taps=taps)
    near(out.logits, full.logits, 1e-12)
    near(out.hidden, full.hidden, 0)
    for name in taps:
        near(out.taps[name], full.taps[name], 1e-12)
