"""What the drafter of every trained head does: suites, and the fixture that a head gives them.

`HeadContract` is for any head that reads states of the target; `FeatureHeadContract` adds what
holds for those that run a network with a cache of its own (eagle, eagle3, mtp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.buffers.contiguous import Contiguous
from specframe.records import Context
from specframe.target.hf import HF
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.testing.host_reads import HostReads
from specframe.tree.chain import ChainTree
from specframe.tree.static import StaticTree
from specframe.types import How, Rows
from tests.golden.runs import CPU, root
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    TINY,
    Composition,
    decode,
    oracle,
    sampling_config,
    target,
    toy,
    tree_of,
)

TREES = ("chain", "static", "dynamic")


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a suite asks of one kind of head."""

    # (network, target, cache word, options of the drafter) -> the drafter; the target is the tiny
    # Llama unless given.
    drafter: Callable[..., Any]
    # A random network for a tiny target, with changes of its options.
    random: Callable[..., Any]
    # A target whose text a network knows, its logits times a factor, and that network.
    perfect: Callable[[float], tuple[HF, Any]]
    # A target, and a network that is right about it now and then.
    imperfect: Callable[[], tuple[HF, Any]]
    # Layers of the network that keep keys and values.
    layers: int = 1
    # A random network for a toy of four tokens; None where the toy lacks what the head reads.
    on_toy: Callable[[], Any] | None = None


class HeadContract:
    """Whatever a head guesses, the text is the target's; a head that is right is accepted."""

    @pytest.fixture
    def head(self) -> Head:
        """What is tested; each suite says."""
        raise NotImplementedError

    @pytest.mark.parametrize("tree", TREES)
    @pytest.mark.parametrize("cache", CACHE_MAKERS)
    def test_random_heads_change_no_greedy_text(self, head: Head, tree: str, cache: str) -> None:
        for prompt in (PROMPT, LONG_PROMPT, (7,)):
            composed = Composition(
                target=target("llama"),
                drafter=head.drafter(head.random(), cache=cache),
                tree=tree_of(tree),
                cache=CACHE_MAKERS[cache](),
            )
            assert decode(composed, prompt, 14).tokens == oracle("llama", prompt, 14)

    @pytest.mark.parametrize("family", TINY)
    def test_every_family_can_be_the_target(self, head: Head, family: str) -> None:
        drafter = head.drafter(head.random(), target(family))
        composed = Composition(target=target(family), drafter=drafter, tree=tree_of("dynamic"))
        assert decode(composed, LONG_PROMPT, 12).tokens == oracle(family, LONG_PROMPT, 12)

    @pytest.mark.parametrize("tree", TREES)
    def test_one_seed_gives_the_autoregressive_text(self, head: Head, tree: str) -> None:
        sampling = sampling_config(1.0, top_p=0.95, repetition_penalty=1.2)
        expected = decode(Composition(target=target("llama"), sampling=sampling)).tokens
        for how in ("place", "iid", "wor", "coupled"):
            composed = Composition(
                target=target("llama"),
                drafter=head.drafter(head.random()),
                tree=tree_of(tree, how),
                how=how,
                sampling=sampling,
            )
            assert decode(composed).tokens == expected

    @pytest.mark.parametrize("tree", TREES)
    def test_a_perfect_head_is_accepted_in_full(self, head: Head, tree: str) -> None:
        model, net = head.perfect(200)
        composed = Composition(target=model, drafter=head.drafter(net, model), tree=tree_of(tree))
        depth = 2 if tree == "static" else 4  # the best ranks of the small static tree go two deep
        outcome = decode(composed, LONG_PROMPT, 1 + 4 * (depth + 1))
        assert [record.num_accepted for record in outcome.records] == [depth] * 4

    @pytest.mark.parametrize("cache", CACHE_MAKERS)
    def test_prompts_leave_no_state(self, head: Head, cache: str) -> None:
        def engine() -> Any:
            model, net = head.imperfect()
            drafter = head.drafter(net, model, cache)
            return Composition(target=model, drafter=drafter, tree=tree_of("static")).engine(12)

        prompts = (LONG_PROMPT, PROMPT, (7,))
        shared, fresh = engine(), [engine().generate(prompt) for prompt in prompts]
        for order in ((0, 1, 2), (2, 1, 0), (1, 1, 0)):
            assert [shared.generate(prompts[i]) for i in order] == [fresh[i] for i in order]

    @pytest.mark.parametrize("tree", TREES)
    def test_one_read_a_step(self, head: Head, tree: str) -> None:
        model, net = head.imperfect()
        drafter = head.drafter(net, model)
        loop = Composition(target=model, drafter=drafter, tree=tree_of(tree)).decoding(40)
        loop.begin(LONG_PROMPT)
        for _ in range(3):
            with one_read(model):
                loop.step()

    def test_only_listed_tokens_are_drafted(self, head: Head, tmp_path: Path) -> None:
        model, net = head.perfect(1)
        text = decode(Composition(target=model), PROMPT, 21).tokens
        listed = tmp_path / "ids.txt"
        listed.write_text("\n".join(map(str, {*text[::2], 1, 2, 3})), encoding="utf-8")
        known = set(map(int, listed.read_text(encoding="utf-8").split()))
        for tree in TREES:
            drafter = head.drafter(net, model, vocabulary=str(listed))
            composed = Composition(target=model, drafter=drafter, tree=tree_of(tree))
            outcome = decode(composed, PROMPT, 21)
            assert outcome.tokens == text
            assert outcome.num_accepted > 0
            for record in outcome.records:
                live = record.draft.tokens[record.draft.alive][1:]
                assert set(live.tolist()) <= known


class ToyHeadContract:
    """Heads for which the toy has what they read: the law of whole texts, by enumeration."""

    @pytest.mark.parametrize("tree", ["chain", "static"])
    @pytest.mark.parametrize("how", ["iid", "wor"])
    def test_rejection_follows_the_exact_law(self, head: Head, tree: str, how: How) -> None:
        small = toy(vocab_size=4)
        policy: Any = ChainTree(depth=2, max_nodes=4, proposal=how)
        if tree == "static":
            policy = StaticTree(depth=2, max_nodes=4, proposal=how, paths=[[0], [1], [0, 0]])
        assert head.on_toy is not None
        composed = Composition(
            target=small,
            drafter=head.drafter(head.on_toy(), small),
            tree=policy,
            accept=Rejection(),
            how=how,
            sampling=sampling_config(0.9, top_k=3),
        )
        engine = composed.engine()
        found, _ = sequence_law(engine, (0, 1), length=3, max_branches=60_000)
        exact = exact_law(small, engine.sampling(2), (0, 1), length=3)
        assert max_error(found, exact) < 1e-12


class FeatureHeadContract(HeadContract):
    """Heads that run a network over features of the target, with keys and values of its own."""

    @pytest.mark.parametrize("how", ["iid", "wor", "coupled"])
    def test_a_perfect_head_is_accepted_at_any_temperature(self, head: Head, how: How) -> None:
        model, net = head.perfect(1)
        rule: AcceptRule = Match() if how == "coupled" else Rejection()
        composed = Composition(
            target=model,
            drafter=head.drafter(net, model),
            tree=tree_of("chain", how),
            how=how,
            sampling=sampling_config(1.0),
            accept=rule,
        )
        outcome = decode(composed, PROMPT, 21)
        assert [record.num_accepted for record in outcome.records] == [4] * 4
        assert len(set(outcome.tokens)) > 4, "not a text that repeats one token"

    @pytest.mark.parametrize("cache", CACHE_MAKERS)
    @pytest.mark.parametrize("tree", TREES)
    def test_own_cache_is_one_pass_over_the_same_true_features(
        self, head: Head, tree: str, cache: str
    ) -> None:
        model, net = head.imperfect()
        drafter = head.drafter(net, model, cache)
        outcome = decode(
            Composition(target=model, drafter=drafter, tree=tree_of(tree)), LONG_PROMPT, 24
        )
        accepted = [record.num_accepted for record in outcome.records]
        assert 0 < sum(accepted) < 4 * len(accepted), "some but not all must be accepted"
        tokens = outcome.loop.context.tokens
        with torch.inference_mode():
            drafter.expand(root(outcome.loop.context))  # what is pending is run now
            expected = self._once(head, drafter, tokens)
            for layer in range(head.layers):
                pairs = zip(drafter._cache.committed(layer), expected.committed(layer), strict=True)
                for mine, wanted in pairs:
                    assert mine.shape[2] == len(tokens) - 1
                    torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-9)

    def _once(self, head: Head, drafter: Any, tokens: list[int]) -> Contiguous:
        """The cache of a drafter that meets these tokens as one prompt."""
        model, net = head.imperfect()
        cache = CACHE_MAKERS["dynamic"]()
        cache.open(0, columns=len(tokens), device=CPU)
        out = model.prefill(tokens[:-1], cache, taps=drafter.traits.needs.taps)
        once = head.drafter(net, model)
        context = Context.of(tokens, CPU, max_columns=128)
        once.begin(context, out)
        once.expand(root(context))
        return once._cache

    @pytest.mark.parametrize("cache", CACHE_MAKERS)
    def test_goes_back_with_the_context(self, head: Head, cache: str) -> None:
        model, net = head.perfect(1)
        drafter = head.drafter(net, model, cache)
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
        keys, _ = drafter._cache.committed(0)
        assert keys.shape[2] == drafter._cache.lengths[0]

    @pytest.mark.parametrize("tree", TREES)
    def test_one_draft_forward_per_expanded_level(
        self, head: Head, tree: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (model, net), calls = head.perfect(200), list[int]()
        drafter = head.drafter(net, model)
        inner = net.forward

        def counted(states: Tensor, *args: Any) -> Tensor:
            calls.append(states.shape[1])
            return inner(states, *args)

        monkeypatch.setattr(net, "forward", counted)
        loop = Composition(target=model, drafter=drafter, tree=tree_of(tree)).decoding(40)
        loop.begin(LONG_PROMPT)
        assert calls == [], "a network runs in expand only"
        for step in range(3):
            calls.clear()
            loop.step()
            again = 3 if tree == "static" else 5  # accepted nodes and the root
            assert calls[0] == (again if step else len(LONG_PROMPT))
            assert len(calls) == 4


@contextmanager
def one_read(model: HF) -> Iterator[None]:
    """Check that the host reads once inside, the target's own forward left out."""
    reads, base = HostReads(), model.model.base_model
    with pytest.MonkeyPatch.context() as patch, reads.counting():
        patch.setattr(base, "forward", reads.excluding(base.forward))
        yield
    assert len(reads.seen) == 1, reads.seen


# Mistakes of wiring that references must catch.


def off_by_one(drafter: Any) -> None:
    """Drafted rows stand one place too far on; those of true features are right."""
    inner = drafter._run

    def moved(states: Tensor, rows: Rows, *, depth: int) -> Tensor:
        return inner(states, replace(rows, positions=rows.positions + bool(depth)), depth=depth)

    drafter._run = moved


def stale(drafter: Any) -> None:
    """The second step goes on from the states of the first, as if nothing was committed."""
    inner = drafter._extend

    def once(features: Tensor) -> None:
        inner(features if drafter._cache.lengths[0] == 0 else torch.zeros_like(features))

    drafter._extend = once
