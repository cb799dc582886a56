"""drafter=eagle: the reference's own trees, features, caches, laws and vocabularies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.drafter.eagle import Eagle
from specframe.drafting.features import FeatureDrafter
from specframe.errors import ConfigError
from specframe.heads.eagle_net import EagleNet
from specframe.records import Context
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.tree.chain import ChainTree
from specframe.tree.static import StaticTree
from specframe.types import Frontier, How, Proposal
from tests.counting import HostReads
from tests.golden.runs import CPU, Golden, agrees, cached, root, run
from tests.heads.small_heads import (
    HIDDEN,
    bigram_target,
    eagle_net,
    perfect_eagle,
    shape,
)
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    TINY,
    VOCAB,
    Composition,
    decode,
    draft,
    oracle,
    sampling_config,
    target,
    toy,
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


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("name", ["eagle", "eagle_nobias"])
def test_golden_states_and_trees(name: str, cache: str, tmp_path: Path) -> None:
    golden, drafter = golden_drafter(name, tmp_path, cache)
    states, trees = run(golden, drafter)
    torch.testing.assert_close(states, golden.expected["prefill_hidden"][0], rtol=0, atol=1e-5)
    assert [agrees(golden, tree, step) for step, tree in enumerate(trees, 1)] == [True, True]


def off_by_one(drafter: FeatureDrafter) -> None:
    """Drafted rows stand one place too far on; those of true features are right."""
    inner = drafter._forward

    def moved(fed: tuple[Tensor, ...], *rest: Any) -> Tensor:
        states, tokens, positions, *more = fed
        return inner((states, tokens, positions + bool(drafter._levels), *more), *rest)

    drafter._forward = moved  # type: ignore[method-assign]


def swapped(drafter: Any) -> None:
    """The feature comes before the embedding."""
    half = drafter.net.fc.weight.shape[1] // 2
    drafter.net.fc.weight.copy_(drafter.net.fc.weight.roll(half, dims=1))


def stale(drafter: FeatureDrafter) -> None:
    """The second step goes on from the states of the first, as if nothing was committed."""
    inner = drafter._extend

    def once(features: Tensor) -> None:
        inner(features if drafter._cache.lengths[0] == 0 else torch.zeros_like(features))

    drafter._extend = once  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [off_by_one, swapped, stale])
@pytest.mark.parametrize("name", ["eagle", "eagle_nobias"])
def test_golden_trees_catch_wrong_wiring(
    name: str, fault: Callable[[Any], None], tmp_path: Path
) -> None:
    golden, drafter = golden_drafter(name, tmp_path)
    fault(drafter)
    _, trees = run(golden, drafter)
    assert not all(agrees(golden, tree, step) for step, tree in enumerate(trees, 1))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_random_heads_change_no_greedy_text(tree: str, cache: str) -> None:
    for prompt in (PROMPT, LONG_PROMPT, (7,)):
        composed = Composition(
            target=target("llama"),
            drafter=eagle(eagle_net(), cache=cache),
            tree=tree_of(tree),
            cache=CACHE_MAKERS[cache](),
        )
        assert decode(composed, prompt, 14).tokens == oracle("llama", prompt, 14)


@pytest.mark.parametrize("family", TINY)
def test_every_family_can_be_the_target(family: str) -> None:
    drafter = eagle(eagle_net(), target(family))
    composed = Composition(target=target(family), drafter=drafter, tree=tree_of("dynamic"))
    assert decode(composed, LONG_PROMPT, 12).tokens == oracle(family, LONG_PROMPT, 12)


@pytest.mark.parametrize("tree", TREES)
def test_one_seed_gives_the_autoregressive_text(tree: str) -> None:
    sampling = sampling_config(1.0, top_p=0.95, repetition_penalty=1.2)
    expected = decode(Composition(target=target("llama"), sampling=sampling)).tokens
    for how in ("place", "iid", "wor", "coupled"):
        composed = Composition(
            target=target("llama"),
            drafter=eagle(eagle_net()),
            tree=tree_of(tree, how),
            how=how,
            sampling=sampling,
        )
        assert decode(composed).tokens == expected


@pytest.mark.parametrize("tree", ["chain", "static"])
@pytest.mark.parametrize("how", ["iid", "wor"])
def test_rejection_follows_the_exact_law(tree: str, how: How) -> None:
    small = toy(vocab_size=4)
    net = eagle_net(hidden=4, bias=False, shape=shape(4, heads=2, kv_heads=1, head_dim=2))
    policy: Any = ChainTree(depth=2, max_nodes=4, proposal=how)
    if tree == "static":
        policy = StaticTree(depth=2, max_nodes=4, proposal=how, paths=[[0], [1], [0, 0]])
    composed = Composition(
        target=small,
        drafter=eagle(net, small),
        tree=policy,
        accept=Rejection(),
        how=how,
        sampling=sampling_config(0.9, top_k=3),
    )
    engine = composed.engine()
    found, _ = sequence_law(engine, (0, 1), length=3, max_branches=60_000)
    exact = exact_law(small, engine.sampling(2), (0, 1), length=3)
    assert max_error(found, exact) < 1e-12


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


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("tree", TREES)
def test_own_cache_is_one_pass_over_the_same_true_features(tree: str, cache: str) -> None:
    model = bigram_target()
    drafter = eagle(perfect_eagle(noise=0.12), model, cache)
    composed = Composition(target=model, drafter=drafter, tree=tree_of(tree))
    outcome = decode(composed, LONG_PROMPT, 24)
    accepted = [record.num_accepted for record in outcome.records]
    assert 0 < sum(accepted) < 4 * len(accepted), "some but not all must be accepted"
    tokens = outcome.loop.context.tokens
    with torch.inference_mode():
        drafter.expand(root(outcome.loop.context))  # what is pending is run now
        held = cached(drafter)
        one = CACHE_MAKERS["dynamic"]()
        one.open(0, columns=len(tokens), device=CPU)
        out = model.prefill(tokens[:-1], one, taps=drafter.traits.needs.taps)
        once = eagle(perfect_eagle(noise=0.12), model)
        context = Context.of(tokens, CPU)
        context.max_slots = 128
        once.begin(context, out)
        once.expand(root(context))
        expected = cached(once)
    assert held[0].shape[2] == len(tokens) - 1
    for mine, wanted in zip(held, expected, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("tree", TREES)
def test_a_perfect_head_is_accepted_in_full(tree: str) -> None:
    model = bigram_target(sharp=200)
    composed = Composition(target=model, drafter=eagle(perfect_eagle(), model), tree=tree_of(tree))
    # The best ranks of the small static tree go two deep.
    depth = 2 if tree == "static" else 4
    outcome = decode(composed, LONG_PROMPT, 1 + 4 * (depth + 1))
    assert [record.num_accepted for record in outcome.records] == [depth] * 4


@pytest.mark.parametrize("how", ["iid", "wor", "coupled"])
def test_a_perfect_head_is_accepted_at_any_temperature(how: How) -> None:
    model = bigram_target()
    rule: AcceptRule = Match() if how == "coupled" else Rejection()
    composed = Composition(
        target=model,
        drafter=eagle(perfect_eagle(), model),
        tree=tree_of("chain", how),
        how=how,
        sampling=sampling_config(1.0),
        accept=rule,
    )
    outcome = decode(composed, PROMPT, 21)
    assert [record.num_accepted for record in outcome.records] == [4] * 4
    assert len(set(outcome.tokens)) > 4, "not a text that repeats one token"


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


def test_only_listed_tokens_are_drafted(tmp_path: Path) -> None:
    model = bigram_target()
    plain = Composition(target=model, drafter=eagle(perfect_eagle(), model))
    text = decode(plain, PROMPT, 21).tokens
    listed = tmp_path / "ids.txt"
    listed.write_text("\n".join(map(str, {*text[::2], 1, 2, 3})), encoding="utf-8")
    known = set(map(int, listed.read_text(encoding="utf-8").split()))
    drafter = eagle(perfect_eagle(), model, vocabulary=str(listed))
    for tree in TREES:
        composed = Composition(target=model, drafter=drafter, tree=tree_of(tree))
        outcome = decode(composed, PROMPT, 21)
        assert outcome.tokens == text
        assert outcome.num_accepted > 0
        for record in outcome.records:
            live = record.draft.tokens[record.draft.alive][1:]
            assert set(live.tolist()) <= known


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


def test_prompts_leave_no_state() -> None:
    def engine(cache: str) -> Any:
        model = bigram_target()
        drafter = eagle(perfect_eagle(noise=0.12), model, cache)
        return Composition(target=model, drafter=drafter, tree=tree_of("static")).engine(12)

    for cache in CACHE_MAKERS:
        prompts = (LONG_PROMPT, PROMPT, (7,))
        shared = engine(cache)
        fresh = [engine(cache).generate(prompt) for prompt in prompts]
        for order in ((0, 1, 2), (2, 1, 0), (1, 1, 0)):
            assert [shared.generate(prompts[i]) for i in order] == [fresh[i] for i in order]


@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_goes_back_with_the_context(cache: str) -> None:
    model = bigram_target()
    drafter = eagle(perfect_eagle(), model, cache)
    loop = Composition(target=model, drafter=drafter, tree=tree_of("chain")).decoding(40)
    loop.begin(PROMPT)
    for _ in range(3):
        loop.step()
    text = list(loop.context.tokens)
    for length, tail in ((16, ()), (11, (3, 5)), (8, ()), (7, (1,)), (4, (2, 9, 4, 4))):
        loop.truncate(length, tail)
        assert drafter._cache.lengths[0] <= length - 1
        record = loop.step()
        assert record.num_accepted == 4, "right again at once, without a step to recover"
        if not tail:
            assert loop.context.tokens[:length] == text[:length]
        text = list(loop.context.tokens)
    held = cached(drafter)
    assert held[0].shape[2] == drafter._cache.lengths[0]


@pytest.mark.parametrize("tree", TREES)
def test_one_draft_forward_per_expanded_level_and_one_read(tree: str) -> None:
    model, calls = bigram_target(sharp=200), []
    drafter = eagle(perfect_eagle(), model)
    net: Any = drafter.net
    inner = net.forward

    def counted(states: Tensor, *args: Any) -> Tensor:
        calls.append(states.shape[1])
        return inner(states, *args)

    net.forward = counted
    loop = Composition(target=model, drafter=drafter, tree=tree_of(tree)).decoding(40)
    reads = HostReads()
    base = model.model.base_model
    base.forward = reads.excluding(base.forward)
    loop.begin(LONG_PROMPT)
    assert calls == [], "a network runs in expand only"
    for step in range(3):
        calls.clear()
        reads.seen.clear()
        with reads.counting():
            loop.step()
        again = 3 if tree == "static" else 5  # accepted nodes and the root
        assert calls[0] == (again if step else len(LONG_PROMPT))
        assert len(calls) == 4
        assert len(reads.seen) == 1, reads.seen


def test_a_level_may_be_expanded_in_parts() -> None:
    """A policy that comes back to a depth gets what one call for all its nodes gives."""
    logits = []
    for parts in ([0, 1, 2], [0], [2, 1]), ([0, 1, 2],):
        made = eagle(eagle_net())
        loop = Composition(target=target("llama"), drafter=made).decoding(8)
        loop.begin(PROMPT)
        with torch.inference_mode():
            builder = loop._builder("place")
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
