"""drafter=eagle3: the reference's own trees, fused layers, mapped vocabularies, switches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.accept.typical import Typical
from specframe.drafter.eagle3 import Eagle3
from specframe.errors import ConfigError
from specframe.heads.eagle_net import Eagle3Net
from specframe.heads.layers import KeptView
from specframe.target.hf import HF
from specframe.types import How
from tests.drafter.head_contract import FeatureHeadContract, Head, off_by_one
from tests.golden.runs import Golden, agrees, run
from tests.heads.small_heads import LAYERS, bigram_target, eagle3_net, perfect_eagle3
from tests.small_models import (
    CACHE_MAKERS,
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    decode,
    oracle,
    target,
    tree_of,
)

TREES = ("chain", "static", "dynamic")


def eagle3(net: Eagle3Net, model: Any = None, cache: str = "dynamic", **more: Any) -> Eagle3:
    """drafter=eagle3 composed by hand."""
    return Eagle3.of(
        net,
        target=model or target("llama"),
        cache=CACHE_MAKERS[cache](),
        runtime=RUNTIME,
        **{"layers": LAYERS, **more},
    )


def golden_drafter(folder: Path, cache: str = "dynamic", **more: Any) -> tuple[Golden, Eagle3]:
    golden = Golden.of("eagle3")
    made = Eagle3(
        path=golden.unpacked(folder),
        target=golden.target(),
        new_cache=CACHE_MAKERS[cache],
        runtime=RUNTIME,
        **{"layers": None, "vocabulary": None, **more},
    )
    return golden, made


class TestEagle3(FeatureHeadContract):
    """What every head does."""

    @pytest.fixture
    def head(self) -> Head:
        def perfect(sharp: float, **changes: Any) -> tuple[HF, Eagle3Net]:
            model = bigram_target(sharp=sharp)
            return model, perfect_eagle3(model, **changes)

        return Head(
            drafter=eagle3,
            random=eagle3_net,
            perfect=perfect,
            imperfect=lambda: perfect(1, draft_vocab=80),
        )


@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_golden_states_and_trees(cache: str, tmp_path: Path) -> None:
    golden, drafter = golden_drafter(tmp_path, cache)
    assert drafter.traits.needs.taps == ("resid:2", "resid:5", "resid:7")
    states, trees = run(golden, drafter)
    torch.testing.assert_close(states, golden.expected["prefill_hidden"][0], rtol=0, atol=1e-5)
    assert [agrees(golden, tree, step) for step, tree in enumerate(trees, 1)] == [True, True]


def swapped(drafter: Any) -> None:
    """The state comes before the embedding."""
    attention = drafter.net.midlayer.self_attn
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight.copy_(projection.weight.roll(64, dims=1))


def absolute(drafter: Any) -> None:
    """Offsets are read as ids."""
    drafter._ids = drafter.net.d2t


def reversed_taps(drafter: Any) -> None:
    """High layers come first."""
    drafter.net.fc.weight.copy_(drafter.net.fc.weight.roll(64, dims=1))


def normed(drafter: Any) -> None:
    """The normed state is fed back."""
    inner = drafter._through
    drafter._through = lambda *given: drafter.net.norm(inner(*given))


@pytest.mark.parametrize("fault", [off_by_one, swapped, absolute, reversed_taps, normed])
def test_golden_trees_catch_wrong_wiring(fault: Callable[[Any], None], tmp_path: Path) -> None:
    golden, drafter = golden_drafter(tmp_path)
    fault(drafter)
    _, trees = run(golden, drafter)
    assert not all(agrees(golden, tree, step) for step, tree in enumerate(trees, 1))


@pytest.mark.parametrize(
    "switches",
    [
        {"norm_before_residual": True},
        {"norm_before_fc": True},
        {"fc_norm": True},
        {"norm_output": True},
        {"layers": 2},
        {"bias": True},
        {"draft_vocab": VOCAB, "mapped": False, "marked": False},
    ],
)
def test_every_variant_drafts(switches: dict[str, Any]) -> None:
    plain, other = eagle3_net(), eagle3_net(**switches)
    composed = Composition(target=target("llama"), drafter=eagle3(other), tree=tree_of("dynamic"))
    assert decode(composed, PROMPT, 10).tokens == oracle("llama", PROMPT, 10)
    if set(switches) <= {"norm_before_residual", "norm_output"}:
        other.load_state_dict(plain.state_dict())
        states = torch.randn(1, 3, 32, dtype=torch.float64)
        view = KeptView(positions=torch.arange(3), visible=None, keep=lambda layer, k, v: (k, v))
        same = torch.equal(plain(states, states, view), other(states, states, view))
        assert not same, "a switch that changes nothing"


def test_norm_output_feeds_the_normed_state_back() -> None:
    plain, fed = eagle3_net(), eagle3_net(norm_output=True)
    states = torch.randn(1, 3, 32, dtype=torch.float64)
    view = KeptView(positions=torch.arange(3), visible=None, keep=lambda layer, k, v: (k, v))
    raw, normed_states = plain(states, states, view), fed(states, states, view)
    torch.testing.assert_close(plain.norm(raw), normed_states)
    torch.testing.assert_close(plain.logits(raw), fed.logits(normed_states))


def test_reduced_vocabularies_speak_target_ids() -> None:
    """Acceptance, not only text: ids that are misread leave the text right."""
    model = bigram_target(sharp=200)
    text = decode(Composition(target=model), PROMPT, 25).tokens
    net = perfect_eagle3(model, draft_vocab=40)
    known = set(net.target_ids().tolist())
    assert set(text) & known and not set(text) <= known, "the seed must leave some tokens out"
    drafter = eagle3(net, model)
    outcome = decode(Composition(target=model, drafter=drafter), PROMPT, 25)
    assert outcome.tokens == text
    for record in outcome.records:
        drafted = record.draft.tokens[1:].tolist()
        assert set(drafted) <= known
        ahead = text[record.length_before - len(PROMPT) :]
        run_of_known = next(
            (i for i, token in enumerate(ahead[: len(drafted)]) if token not in known),
            len(drafted),
        )
        assert record.num_accepted == run_of_known


def test_a_file_restricts_the_head_further(tmp_path: Path) -> None:
    net = eagle3_net()
    known = net.target_ids().tolist()
    listed = tmp_path / "ids.json"
    listed.write_text(json.dumps([*known[::2], *range(3)]), encoding="utf-8")
    drafter = eagle3(net, vocabulary=str(listed))
    kept = sorted(set(known) & {*known[::2], 0, 1, 2})
    outcome = decode(Composition(target=target("llama"), drafter=drafter), PROMPT, 8)
    assert outcome.tokens == oracle("llama", PROMPT, 8)
    assert drafter._ids is not None and drafter._ids.tolist() == kept
    absent = sorted(set(range(VOCAB)) - set(known))
    listed.write_text(json.dumps(absent[:5]), encoding="utf-8")
    with pytest.raises(ConfigError, match="none of these tokens is among the 40"):
        eagle3(net, vocabulary=str(listed))


@pytest.mark.parametrize("how", ["place", "wor"])
def test_typical_takes_it_too(how: How) -> None:
    rule = Typical(epsilon=0.09, delta=0.3, temperature=0.7)
    composed = Composition(
        target=target("llama"), drafter=eagle3(eagle3_net()), accept=rule, tree=tree_of("static")
    )
    assert len(decode(composed, PROMPT, 12).tokens) == 12


def test_taps_are_what_enters_the_named_blocks() -> None:
    """Row by row, against the model's own hidden states, for the prompt and for a step."""
    model = target("llama")
    drafter = eagle3(eagle3_net())
    loop = Composition(target=model, drafter=drafter).decoding(8)
    loop.begin(PROMPT)
    loop.step()
    taken = torch.cat(drafter._pending.parts)
    start = drafter._cache.lengths[0]
    with torch.no_grad():
        found = model.model.model(
            torch.tensor([loop.context.tokens[:-1]]), output_hidden_states=True, use_cache=False
        ).hidden_states
    # transformers' list starts with the embeddings and norms its last entry.
    wanted = torch.cat([found[1][0], found[2][0]], dim=-1)[start:]
    torch.testing.assert_close(taken[:, :64], wanted, rtol=0, atol=1e-9)
    assert start == len(PROMPT)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (None, r"drafter\.layers=null: in the 3 blocks .* collide"),
        ([1, 1, 2], r"drafter\.layers=\[1, 1, 2\]: .* give each once"),
        ([0, 1, 4], r"blocks 0 \.\. 2"),
        ([1, 2], "fuses 96 values, 2 layers"),
    ],
)
def test_layers_are_checked(layers: list[int] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        eagle3(eagle3_net(), layers=layers)


def test_an_unmapped_head_must_cover_the_target() -> None:
    net = eagle3_net(draft_vocab=40, mapped=False, marked=False)
    with pytest.raises(ConfigError, match="40 rows and no d2t"):
        eagle3(net)
