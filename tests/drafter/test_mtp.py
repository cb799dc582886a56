"""drafter=mtp: modules against their formula without a cache; text, acceptance and laws."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specframe.drafter.mtp import MTP
from specframe.errors import ConfigError
from specframe.heads.layers import KeptView
from specframe.heads.mtp_file import save_mtp
from specframe.heads.mtp_net import MTPNet
from specframe.target.base import Target
from specframe.target.hf import HF
from specframe.types import Frontier, Proposal
from tests.drafter.head_contract import FeatureHeadContract, Head, ToyHeadContract, stale
from tests.golden.runs import CPU
from tests.heads.small_heads import bigram_target, mtp_net, perfect_mtp, shape
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    decode,
    target,
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


class TestMTP(FeatureHeadContract, ToyHeadContract):
    """What every head does, for one module and for several."""

    @pytest.fixture(params=[1, 3])
    def head(self, request: pytest.FixtureRequest) -> Head:
        count: int = request.param

        def on_toy() -> MTPNet:
            sizes = shape(4, heads=2, kv_heads=1, head_dim=2)
            return mtp_net(modules=count, shape=sizes, vocab_size=4)

        return Head(
            drafter=mtp,
            random=partial(mtp_net, modules=count),
            perfect=lambda sharp: (bigram_target(sharp=sharp), perfect_mtp(modules=count)),
            imperfect=lambda: (bigram_target(), perfect_mtp(noise=0.2, modules=count)),
            layers=count,
            on_toy=on_toy,
        )


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


def test_only_listed_tokens_are_drafted_with_a_head_of_its_own(tmp_path: Path) -> None:
    model, net = bigram_target(), perfect_mtp(head=VOCAB)
    own: Any = net.module(0).shared_head.head
    own.weight.copy_(model.model.lm_head.weight.detach())
    text = decode(Composition(target=model), PROMPT, 21).tokens
    listed = tmp_path / "ids.txt"
    listed.write_text("\n".join(map(str, {*text[::2], 1, 2, 3})), encoding="utf-8")
    known = set(map(int, listed.read_text(encoding="utf-8").split()))
    drafter = mtp(net, model, vocabulary=str(listed))
    outcome = decode(Composition(target=model, drafter=drafter, tree=tree_of("static")), PROMPT, 21)
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
