"""drafter=mtp: modules against their formula without a cache; text, acceptance and laws."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.drafter.mtp import MTP
from specframe.errors import ConfigError
from specframe.heads.layers import KeptView
from specframe.heads.mtp_file import save_mtp
from specframe.heads.mtp_net import MTPNet
from specframe.records import Context
from specframe.target.base import Target
from specframe.target.hf import HF
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.tree.chain import ChainTree
from specframe.tree.static import StaticTree
from specframe.types import Frontier, How, Proposal
from tests.counting import HostReads
from tests.golden.runs import CPU, root
from tests.heads.small_heads import bigram_target, mtp_net, perfect_mtp, shape
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    TINY,
    VOCAB,
    Composition,
    decode,
    oracle,
    sampling_config,
    target,
    toy,
    tree_of,
)
from tests.small_models import model as model_of

TREES = ("chain", "static", "dynamic")
COUNTS = (1, 2, 3)
SWITCHED = [("chain", "pre_norm", "post_norm"), ("chain", "post_norm", "pre_norm")]


def mtp(net: MTPNet, model: Any = None, cache: str = "dynamic", **more: Any) -> MTP:
    """drafter=mtp composed by hand."""
    model = model or target("llama")
    return MTP.of(net, target=model, cache=CACHE_MAKERS[cache](), runtime=RUNTIME, **more)


@lru_cache
def uneven() -> HF:
    """A target whose last norm scales every value differently: hnorm cannot undo that."""
    made = copy.deepcopy(model_of("llama"))
    with torch.no_grad():
        made.model.norm.weight.copy_(torch.linspace(0.2, 3.0, 32))
    return HF.of(made, runtime=RUNTIME)


class Formula:
    """The modules as the paper writes them: whole sequences, plain causal rows, no cache."""

    def __init__(self, net: MTPNet, model: Any) -> None:
        self.net, self.model = net, model
        self._known: dict[tuple[int, ...], Tensor] = {}

    @torch.inference_mode()
    def features(self, tokens: Sequence[int]) -> Tensor:
        """[T - 1, H] the target's states of all tokens but the last."""
        before = tuple(tokens[:-1])
        if before not in self._known:
            cache = CACHE_MAKERS["dynamic"]()
            cache.open(0, columns=len(before), device=CPU)
            name = "final_" + self.net.options.feature.replace("_", "")
            out = self.model.prefill(before, cache, taps=(name,))
            self._known[before] = out.taps[name].clone()
        return self._known[before]

    @torch.inference_mode()
    def logits(self, prefix: Sequence[int], path: Sequence[int]) -> Tensor:
        """[V] for the token that follows a drafted path below the last token of the prefix."""
        text, last = torch.tensor([*prefix, *path]), len(prefix) - 1
        states, count = self.features(prefix), self.net.options.modules
        for index in range(min(len(path) + 1, count)):
            entering = states
            states, raw = self._module(index, entering, text[index + 1 : index + 1 + last])
        for _ in range(count, len(path) + 1):  # the last one goes on by itself
            entering = torch.cat([entering, states[-1:]])
            tokens = text[count : count + len(entering)]
            states, raw = self._module(count - 1, entering, tokens)
        index = min(len(path), count - 1)
        head: nn.Linear | None = self.net.module(index).shared_head.head
        last_state = self.net.module(index).shared_head.norm(raw[-1:])
        return (self.model.head(last_state) if head is None else head(last_state))[0]

    def _module(self, index: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(states handed on, states before the norm) of consecutive pairs."""
        module = self.net.module(index)
        embedded = module.enorm(self.model.embed(tokens))
        x = torch.cat([embedded, module.hnorm(states)], -1) @ module.eh_proj.weight.T
        keep = lambda layer, keys, values: (keys, values)  # noqa: E731
        view = KeptView(positions=torch.arange(len(x)), visible=None, keep=keep)
        raw = module(x[None], view)[0]
        is_normed = self.net.options.recycle == "post_norm"
        return (module.shared_head.norm(raw) if is_normed else raw), raw

    def chain(self, prefix: Sequence[int], depth: int) -> list[int]:
        """The likeliest token after the likeliest, `depth` times."""
        path: list[int] = []
        for _ in range(depth):
            path.append(int(self.logits(prefix, path).argmax()))
        return path


class Watched:
    """Keeps what a drafter proposes below every node: (prefix, path) and its logits."""

    def __init__(self, drafter: MTP) -> None:
        self.drafter = drafter
        self.seen: list[tuple[tuple[int, ...], tuple[int, ...], Tensor]] = []
        self._inner, self._paths = drafter.expand, dict[int, tuple[int, ...]]()
        drafter.expand = self._expand  # type: ignore[method-assign]

    def _expand(self, frontier: Frontier) -> Sequence[Proposal]:
        proposals = self._inner(frontier)
        logits = proposals[0].logits
        assert logits is not None
        prefix = tuple(self.drafter._context.tokens)
        rows = zip(
            frontier.nodes.tolist(),
            frontier.parents.tolist(),
            frontier.tokens.tolist(),
            strict=True,
        )
        for row, (node, parent, token) in enumerate(rows):
            path = (*self._paths[parent], token) if frontier.depth else ()
            self._paths[node] = path
            self.seen.append((prefix, path, logits[row].clone()))
        return proposals


@pytest.mark.parametrize(
    ("tree", "feature", "recycle"),
    [*((tree, "post_norm", "post_norm") for tree in TREES), *SWITCHED],
)
@pytest.mark.parametrize("modules", COUNTS)
def test_every_proposal_is_the_formulas(
    tree: str, modules: int, feature: Any, recycle: Any
) -> None:
    net = mtp_net(modules=modules, feature=feature, recycle=recycle)
    for prompt in (PROMPT, (7,)):
        watched = Watched(mtp(net, uneven()))
        composed = Composition(target=uneven(), drafter=watched.drafter, tree=tree_of(tree))
        decode(composed, prompt, 6)
        formula = Formula(net, uneven())
        assert max(len(path) for _, path, _ in watched.seen) >= (1 if tree == "static" else 3)
        for prefix, path, logits in watched.seen:
            expected = formula.logits(prefix, path)
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)


def stale(drafter: MTP) -> None:
    """What a step commits is fed as zeros."""
    inner = drafter._extend

    def once(features: Tensor) -> None:
        inner(features if drafter._cache.lengths[0] == 0 else torch.zeros_like(features))

    drafter._extend = once  # type: ignore[method-assign]


def swapped(drafter: MTP) -> None:
    """The state comes before the embedding."""
    for module in drafter._modules.layers.values():
        weight = module.eh_proj.weight  # type: ignore[union-attr]
        weight.copy_(weight.roll(weight.shape[1] // 2, dims=1))  # type: ignore


def unlinked(drafter: MTP) -> None:
    """A later module forgets what the one before gave at the last committed token."""
    drafter._entering = lambda features: torch.cat(  # type: ignore[method-assign]
        [features, features.new_zeros((len(features), 32))], dim=-1
    )


@pytest.mark.parametrize("fault", [stale, swapped, unlinked])
def test_the_formula_catches_wrong_wiring(fault: Callable[[MTP], None]) -> None:
    drafter = mtp(mtp_net(modules=2))
    fault(drafter)
    watched = Watched(drafter)
    decode(Composition(target=target("llama"), drafter=drafter, tree=tree_of("chain")), PROMPT, 6)
    formula = Formula(mtp_net(modules=2), target("llama"))
    errors = [
        (logits - formula.logits(prefix, path)).abs().max() for prefix, path, logits in watched.seen
    ]
    assert max(errors) > 1e-3


@pytest.mark.parametrize("switch", ["feature", "recycle"])
def test_a_wrong_norm_shows_in_the_drafts(switch: str) -> None:
    watched = Watched(mtp(mtp_net(**{switch: "pre_norm"}), uneven()))
    composed = Composition(target=uneven(), drafter=watched.drafter, tree=tree_of("chain"))
    decode(composed, PROMPT, 4)
    formula = Formula(mtp_net(), uneven())
    errors = [
        (logits - formula.logits(prefix, path)).abs().max() for prefix, path, logits in watched.seen
    ]
    assert max(errors) > 1e-2


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("modules", COUNTS)
def test_acceptance_is_that_of_the_formula(modules: int, cache: str) -> None:
    model, net = bigram_target(), perfect_mtp(noise=0.2, modules=modules)
    composed = Composition(target=model, drafter=mtp(net, model, cache), tree=tree_of("chain"))
    outcome = decode(composed, LONG_PROMPT, 30)
    text, formula = [*LONG_PROMPT, *outcome.tokens], Formula(net, model)
    accepted = [record.num_accepted for record in outcome.records]
    assert 0 < sum(accepted) < 4 * len(accepted), "some but not all must be accepted"
    for record in outcome.records[:-1]:  # the last one may be cut
        start = record.length_before
        drafted = formula.chain(text[:start], record.draft.depth)
        assert record.draft.tokens[1:].tolist() == drafted
        right = [one == other for one, other in zip(drafted, text[start:], strict=False)]
        assert record.num_accepted == ([*right, False]).index(False)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("modules", [1, 3])
@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_random_modules_change_no_greedy_text(cache: str, modules: int, tree: str) -> None:
    for prompt in (PROMPT, LONG_PROMPT, (7,)):
        composed = Composition(
            target=target("llama"),
            drafter=mtp(mtp_net(modules=modules), cache=cache),
            tree=tree_of(tree),
            cache=CACHE_MAKERS[cache](),
        )
        assert decode(composed, prompt, 14).tokens == oracle("llama", prompt, 14)


@pytest.mark.parametrize("family", TINY)
def test_every_family_can_be_the_target(family: str) -> None:
    drafter = mtp(mtp_net(modules=2), target(family))
    composed = Composition(target=target(family), drafter=drafter, tree=tree_of("dynamic"))
    assert decode(composed, LONG_PROMPT, 12).tokens == oracle(family, LONG_PROMPT, 12)


@pytest.mark.parametrize("tree", TREES)
def test_one_seed_gives_the_autoregressive_text(tree: str) -> None:
    sampling = sampling_config(1.0, top_p=0.95, repetition_penalty=1.2)
    expected = decode(Composition(target=target("llama"), sampling=sampling)).tokens
    for how in ("place", "iid", "wor", "coupled"):
        composed = Composition(
            target=target("llama"),
            drafter=mtp(mtp_net(modules=2)),
            tree=tree_of(tree, how),
            how=how,
            sampling=sampling,
        )
        assert decode(composed).tokens == expected


@pytest.mark.parametrize("tree", ["chain", "static"])
@pytest.mark.parametrize("how", ["iid", "wor"])
def test_rejection_follows_the_exact_law(tree: str, how: How) -> None:
    small = toy(vocab_size=4)
    tiny = shape(4, heads=2, kv_heads=1, head_dim=2)
    net = mtp_net(modules=2, shape=tiny, vocab_size=4)
    policy: Any = ChainTree(depth=2, max_nodes=4, proposal=how)
    if tree == "static":
        policy = StaticTree(depth=2, max_nodes=4, proposal=how, paths=[[0], [1], [0, 0]])
    composed = Composition(
        target=small,
        drafter=mtp(net, small),
        tree=policy,
        accept=Rejection(),
        how=how,
        sampling=sampling_config(0.9, top_k=3),
    )
    engine = composed.engine()
    found, _ = sequence_law(engine, (0, 1), length=3, max_branches=60_000)
    exact = exact_law(small, engine.sampling(2), (0, 1), length=3)
    assert max_error(found, exact) < 1e-12


@pytest.mark.parametrize("modules", COUNTS)
@pytest.mark.parametrize("tree", TREES)
def test_perfect_modules_are_accepted_in_full(tree: str, modules: int) -> None:
    model = bigram_target(sharp=200)
    drafter = mtp(perfect_mtp(modules=modules), model)
    composed = Composition(target=model, drafter=drafter, tree=tree_of(tree))
    depth = 2 if tree == "static" else 4  # the best ranks of the small static tree go two deep
    outcome = decode(composed, LONG_PROMPT, 1 + 4 * (depth + 1))
    assert [record.num_accepted for record in outcome.records] == [depth] * 4


@pytest.mark.parametrize("how", ["iid", "wor", "coupled"])
def test_perfect_modules_are_accepted_at_any_temperature(how: How) -> None:
    model = bigram_target()
    rule: AcceptRule = Match() if how == "coupled" else Rejection()
    composed = Composition(
        target=model,
        drafter=mtp(perfect_mtp(modules=2), model),
        tree=tree_of("chain", how),
        how=how,
        sampling=sampling_config(1.0),
        accept=rule,
    )
    outcome = decode(composed, PROMPT, 21)
    assert [record.num_accepted for record in outcome.records] == [4] * 4
    assert len(set(outcome.tokens)) > 4, "not a text that repeats one token"


@pytest.mark.parametrize("modules", COUNTS)
@pytest.mark.parametrize("tree", TREES)
def test_own_cache_is_one_pass_over_the_same_true_features(tree: str, modules: int) -> None:
    model = bigram_target()
    drafter = mtp(perfect_mtp(noise=0.2, modules=modules), model)
    outcome = decode(
        Composition(target=model, drafter=drafter, tree=tree_of(tree)), LONG_PROMPT, 24
    )
    tokens = outcome.loop.context.tokens
    with torch.inference_mode():
        drafter.expand(root(outcome.loop.context))  # what is pending is run now
        one = CACHE_MAKERS["dynamic"]()
        one.open(0, columns=len(tokens), device=CPU)
        out = model.prefill(tokens[:-1], one, taps=drafter.traits.needs.taps)
        once = mtp(perfect_mtp(noise=0.2, modules=modules), model)
        context = Context.of(tokens, CPU)
        context.max_slots = 128
        once.begin(context, out)
        once.expand(root(context))
        for layer in range(modules):
            pairs = zip(drafter._cache.committed(layer), once._cache.committed(layer), strict=True)
            for mine, wanted in pairs:
                assert mine.shape[2] == len(tokens) - 1
                torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("modules", [1, 2])
def test_prompts_leave_no_state(modules: int) -> None:
    def engine() -> Any:
        model = bigram_target()
        drafter = mtp(perfect_mtp(noise=0.2, modules=modules), model)
        return Composition(target=model, drafter=drafter, tree=tree_of("static")).engine(12)

    prompts = (LONG_PROMPT, PROMPT, (7,))
    shared, fresh = engine(), [engine().generate(prompt) for prompt in prompts]
    for order in ((0, 1, 2), (2, 1, 0), (1, 1, 0)):
        assert [shared.generate(prompts[i]) for i in order] == [fresh[i] for i in order]


@pytest.mark.parametrize("modules", COUNTS)
def test_goes_back_with_the_context(modules: int) -> None:
    model, net = bigram_target(), perfect_mtp(noise=0.2, modules=modules)
    watched = Watched(mtp(net, model))
    loop = Composition(target=model, drafter=watched.drafter, tree=tree_of("chain")).decoding(40)
    formula = Formula(net, model)
    loop.begin(PROMPT)
    for _ in range(3):
        loop.step()
    for length, tail in ((8, ()), (7, (1,)), (4, (2, 9, 4, 4)), (2, (3, 1, 4, 1, 5))):
        loop.truncate(length, tail)
        watched.seen.clear()
        loop.step()
        for prefix, path, logits in watched.seen:
            expected = formula.logits(prefix, path)
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("modules", [1, 2])
@pytest.mark.parametrize("tree", TREES)
def test_one_draft_forward_per_expanded_level_and_one_read(tree: str, modules: int) -> None:
    model, calls = bigram_target(sharp=200), []
    drafter = mtp(perfect_mtp(modules=modules), model)
    inner = drafter._modules.forward

    def counted(states: Tensor, *args: Any) -> Tensor:
        calls.append(states.shape[1])
        return inner(states, *args)

    drafter._modules.forward = counted  # type: ignore[method-assign]
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


def loaded(folder: Path, model: Target, **changes: Any) -> MTP:
    """drafter=mtp as the engine builds it from a file."""
    values = {"vocabulary": None, "feature": None, "recycle": None, **changes}
    new = CACHE_MAKERS["dynamic"]
    return MTP(path=str(folder), target=model, new_cache=new, runtime=RUNTIME, **values)


def test_copies_of_the_targets_tables_change_nothing(tmp_path: Path) -> None:
    """Published files hold the target's embedding and head in every module."""
    model = target("llama")
    net = mtp_net(modules=2, embeddings=VOCAB, head=VOCAB)
    own: Any = model.model
    for index in range(2):
        module: Any = net.module(index)
        module.embed_tokens.weight.copy_(own.model.embed_tokens.weight.detach())
        module.shared_head.head.weight.copy_(own.lm_head.weight.detach())
    save_mtp(net, tmp_path)
    watched = Watched(loaded(tmp_path, model))
    decode(Composition(target=model, drafter=watched.drafter, tree=tree_of("chain")), PROMPT, 6)
    bare = mtp_net(modules=2)
    bare.load_state_dict({key: net.state_dict()[key] for key in bare.state_dict()})
    for prefix, path, logits in watched.seen:
        expected = Formula(bare, model).logits(prefix, path)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)


def test_switches_override_the_file(tmp_path: Path) -> None:
    save_mtp(mtp_net(feature="pre_norm", recycle="pre_norm"), tmp_path)
    model = target("llama")
    assert loaded(tmp_path, model).traits.needs.taps == ("final_prenorm",)
    changed = loaded(tmp_path, model, feature="post_norm", recycle="post_norm")
    assert changed.traits.needs.taps == ("final_postnorm",)
    assert changed._modules.options.recycle == "post_norm"


def test_only_listed_tokens_are_drafted(tmp_path: Path) -> None:
    model = bigram_target()
    text = decode(Composition(target=model), PROMPT, 21).tokens
    listed = tmp_path / "ids.txt"
    listed.write_text("\n".join(map(str, {*text[::2], 1, 2, 3})), encoding="utf-8")
    known = set(map(int, listed.read_text(encoding="utf-8").split()))
    for net in (perfect_mtp(modules=2), perfect_mtp(head=VOCAB)):
        if net.options.head:
            head: Any = net.module(0).shared_head.head
            head.weight.copy_(model.model.lm_head.weight.detach())
        drafter = mtp(net, model, vocabulary=str(listed))
        outcome = decode(
            Composition(target=model, drafter=drafter, tree=tree_of("static")), PROMPT, 21
        )
        assert outcome.tokens == text
        assert outcome.num_accepted > 0
        for record in outcome.records:
            live = record.draft.tokens[record.draft.alive][1:]
            assert set(live.tolist()) <= known


def test_modules_of_another_target_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hidden size 16, Llama.* has 32"):
        mtp(mtp_net(shape=shape(16)))
    with pytest.raises(ConfigError, match=r"shared_head\.head\.weight has 40 rows"):
        mtp(mtp_net(head=40))
