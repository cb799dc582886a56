"""drafter=eagle: the reference's own trees, features, caches, laws and vocabularies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.accept.rejection import Rejection
from specframe.drafter.eagle import Eagle
from specframe.errors import ConfigError
from specframe.heads.eagle_net import EagleNet
from specframe.target.hf import HF
from specframe.types import Frontier, Proposal
from tests.drafter.head_contract import (
    FeatureHeadContract,
    Head,
    ToyHeadContract,
    off_by_one,
    stale,
)
from tests.golden.runs import Golden, agrees, root, run
from tests.heads.small_heads import (
    HIDDEN,
    bigram_target,
    eagle_net,
    perfect_eagle,
    shape,
)
from tests.small_models import (
    CACHE_MAKERS,
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    decode,
    draft,
    oracle,
    sampling_config,
    target,
    tree_of,
)

TREES = ("chain", "static", "dynamic")


def eagle(net: EagleNet, model: Any = None, cache: str = "dynamic", **more: Any) -> Eagle:
    """drafter=eagle composed by hand."""
    model = model or target("llama")
    return Eagle.of(net, target=model, cache=CACHE_MAKERS[cache](), runtime=RUNTIME, **more)


def golden_drafter(name: str, folder: Path, cache: str = "dynamic") -> tuple[Golden, Eagle]:
    golden = Golden.of(name)
    made = Eagle(
        path=golden.unpacked(folder),
        vocabulary=None,
        target=golden.target(),
        new_cache=CACHE_MAKERS[cache],
        runtime=RUNTIME,
    )
    return golden, made


class TestEagle(FeatureHeadContract, ToyHeadContract):
    """What every head does."""

    @pytest.fixture
    def head(self) -> Head:
        def perfect(sharp: float) -> tuple[HF, EagleNet]:
            return bigram_target(sharp=sharp), perfect_eagle()

        def on_toy() -> EagleNet:
            sizes = shape(4, heads=2, kv_heads=1, head_dim=2)
            return eagle_net(hidden=4, bias=False, shape=sizes)

        return Head(
            drafter=eagle,
            random=eagle_net,
            perfect=perfect,
            imperfect=lambda: (bigram_target(), perfect_eagle(noise=0.12)),
            on_toy=on_toy,
        )


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("name", ["eagle", "eagle_nobias"])
def test_golden_states_and_trees(name: str, cache: str, tmp_path: Path) -> None:
    golden, drafter = golden_drafter(name, tmp_path, cache)
    states, trees = run(golden, drafter)
    torch.testing.assert_close(states, golden.expected["prefill_hidden"][0], rtol=0, atol=1e-5)
    assert [agrees(golden, tree, step) for step, tree in enumerate(trees, 1)] == [True, True]


def swapped(drafter: Any) -> None:
    """The feature comes before the embedding."""
    half = drafter.net.fc.weight.shape[1] // 2
    drafter.net.fc.weight.copy_(drafter.net.fc.weight.roll(half, dims=1))


@pytest.mark.parametrize("fault", [off_by_one, swapped, stale])
@pytest.mark.parametrize("name", ["eagle", "eagle_nobias"])
def test_golden_trees_catch_wrong_wiring(
    name: str, fault: Callable[[Any], None], tmp_path: Path
) -> None:
    golden, drafter = golden_drafter(name, tmp_path)
    fault(drafter)
    _, trees = run(golden, drafter)
    assert not all(agrees(golden, tree, step) for step, tree in enumerate(trees, 1))


def test_the_law_recorded_is_the_law_of_the_logits(tmp_path: Path) -> None:
    listed = tmp_path / "ids.json"
    listed.write_text(json.dumps(list(range(5, 60))), encoding="utf-8")
    drafter = eagle(eagle_net(), vocabulary=str(listed))
    logits: list[Tensor] = []
    inner = drafter.expand

    def kept(frontier: Frontier) -> Sequence[Proposal]:
        proposals = inner(frontier)
        assert proposals[0].logits is not None
        logits.append(proposals[0].logits)
        return proposals

    drafter.expand = kept  # type: ignore[method-assign]
    composed = Composition(
        target=target("llama"),
        drafter=drafter,
        tree=tree_of("static", "wor"),
        accept=Rejection(),
        how="wor",
        sampling=sampling_config(0.7),
    )
    loop = composed.decoding(8)
    loop.begin(PROMPT)
    record = loop.step()
    assert record.draft.draws is not None
    for call, raw in zip(record.draft.draws, logits, strict=True):
        assert call.law is not None and call.indices is not None and call.ids is not None
        torch.testing.assert_close(call.law, (raw / 0.7).softmax(-1), rtol=0, atol=1e-12)
        drawn = call.tokens >= 0
        assert torch.equal(call.ids[call.indices][drawn], call.tokens[drawn])


def cycling(wrong: int) -> tuple[Any, EagleNet]:
    """A target whose token i is followed by i + 7, and a head that reads the next feature off the
    feature alone; it does not know what follows `wrong`."""
    model = bigram_target(HIDDEN)
    following = (torch.arange(HIDDEN) + 7) % HIDDEN
    units = torch.eye(HIDDEN, dtype=torch.float64)
    with torch.no_grad():
        model.model.model.embed_tokens.weight.copy_(units * HIDDEN**0.5)
        model.model.lm_head.weight[following] = units * 5
    net = perfect_eagle()
    net.fc.weight.zero_()
    net.fc.weight[:, HIDDEN:][following] = units
    net.fc.weight[:, HIDDEN + wrong] = 0
    return model, net


@pytest.mark.parametrize("prompt", [(3,), (5, 1, 9, 30, 2, 2, 8)])
def test_the_feature_is_that_of_the_last_accepted_position(prompt: tuple[int, ...]) -> None:
    wrong = (prompt[-1] + 7 * 9) % HIDDEN
    model, net = cycling(wrong)
    # fc ignores the embedding, so the first drafted token follows from the root's own feature:
    # the pair (f of the token before, root) must be fed, else nothing is ever accepted.
    composed = Composition(target=model, drafter=eagle(net, model), tree=tree_of("chain"))
    outcome = decode(composed, prompt, 26)
    text = [(prompt[-1] + 7 * step) % HIDDEN for step in range(1, 27)]
    assert outcome.tokens == text
    for record in outcome.records[:-1]:
        before = text[: record.length_before - len(prompt)]
        # f of the token before the root gives the root's; each further step one more.
        known = 0
        state = before[-2] if len(before) > 1 else prompt[-1]
        for _ in range(4):
            if state == wrong or (state + 7) % HIDDEN == wrong:
                break
            known += 1
            state = (state + 7) % HIDDEN
        assert record.num_accepted >= known


@pytest.mark.parametrize("cap", [None, 2.0])
def test_a_part_of_the_head_is_the_rows_of_the_whole(cap: float | None, tmp_path: Path) -> None:
    from specframe.heads.embeddings import target_head

    model = bigram_target()
    model._softcap = cap
    ids = torch.tensor([2, 3, 50, 96])
    states = torch.randn(5, HIDDEN, dtype=torch.float64)
    with torch.inference_mode():
        whole, part = model.head(states), target_head(model, ids, RUNTIME)(states)
    torch.testing.assert_close(part, whole[:, ids], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2, 97]", r"97 is no token; ids run from 0 to 96"),
        ("1\n1\n", "listed twice"),
        ("[]", "it is empty"),
        ("a b", "expected token ids"),
    ],
)
def test_bad_vocabularies_are_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"drafter\.vocabulary=.*{message}"):
        eagle(eagle_net(), vocabulary=str(file))
    with pytest.raises(ConfigError, match="no such file"):
        eagle(eagle_net(), vocabulary=str(tmp_path / "absent.txt"))


def test_a_head_of_another_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hidden size 16, Llama.* has 32"):
        eagle(eagle_net(hidden=16))


def test_a_level_may_be_expanded_in_parts() -> None:
    """A policy that comes back to a depth gets what one call for all its nodes gives."""
    logits = []
    for parts in ([0, 1, 2], [0], [2, 1]), ([0, 1, 2],):
        made = eagle(eagle_net())
        loop = Composition(target=target("llama"), drafter=made).decoding(8)
        loop.begin(PROMPT)
        with torch.inference_mode():
            builder = loop.lane.builder("place")
            first = builder.extend(builder.root, made.expand(builder.root)[0], 3)
            for part in parts:
                made.expand(first.select(torch.tensor(part)))
            below = builder.extend(first, made.expand(first)[0], 1)
            found = made.expand(below)[0].logits
        assert found is not None
        logits.append(found)
    torch.testing.assert_close(*logits, rtol=0, atol=1e-12)


def test_another_dtype_is_cast_once() -> None:
    low = Composition(target=draft("llama", "perfect"), drafter=eagle(eagle_net().bfloat16()))
    assert low.drafter.net.fc.weight.dtype == torch.float64  # type: ignore[attr-defined]
    assert decode(low, PROMPT, 8).tokens == oracle("llama", PROMPT, 8)


def test_vocabulary_of_the_file_is_what_the_law_is_over() -> None:
    drafter = eagle(eagle_net())
    loop = Composition(target=target("llama"), drafter=drafter).decoding(4)
    loop.begin(PROMPT)
    with torch.inference_mode():
        proposal = drafter.expand(root(loop.context))[0]
    assert proposal.ids is None
    assert proposal.width == VOCAB
