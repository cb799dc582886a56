"""One host read a step, and no more than a component declares beyond it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe import load
from specframe.accept.base import RULES, AcceptRule
from specframe.buffers.tensor_passes import BufferPass
from specframe.cache.base import Opened
from specframe.drafter.none import NoDraft
from specframe.law.sampling import Sampling
from specframe.loop import Decoding
from specframe.session.declared_reads import ReadsHost
from specframe.target.base import Target
from specframe.testing.defaults import component
from specframe.testing.host_reads import HostReads
from specframe.types import Frontier, How, Proposal, Rows
from tests.methods import Cascade, EarlyExit, Lookahead, Recycling
from tests.small_models import (
    CACHE_MAKERS,
    PROMPT,
    VOCAB,
    Composition,
    drafter_of,
    sampling_config,
    stop_config,
    target,
    toy,
    tree_of,
)
from tests.turns import in_turn

TREES = ("chain", "static", "dynamic", "native")
DRAFTERS = ("none", "ngram", "noisy")


def combinations() -> list[tuple[str, str, str, How]]:
    """(drafter, tree, rule, how) that go together."""
    found: list[tuple[str, str, str, How]] = []
    hows: tuple[How, ...] = ("place", "iid", "wor", "coupled")
    for drafter, tree, rule, how in itertools.product(DRAFTERS, TREES, RULES.names(), hows):
        drawn = how != "place"
        if drawn and (drafter != "noisy" or how not in RULES.get(rule).reads):
            continue
        if tree == "native" and drafter == "noisy":
            continue
        if drawn and tree == "dynamic" and not RULES.get(rule).any_draft:
            continue
        found.append((drafter, tree, rule, how))
    return found


def watch(reads: HostReads, model: Target, cache: Any, patch: pytest.MonkeyPatch) -> None:
    """Leave out what runs inside a transformers model; our cache, called from there, counts."""
    if hasattr(model, "model"):
        base = model.model.base_model
        patch.setattr(base, "forward", reads.excluding(base.forward))
    opened = cache.opened

    def watched(rows: Rows) -> Opened:
        found: Opened = opened(rows)
        for name in ("dense", "visible"):
            setattr(found, name, reads.including(getattr(found, name)))
        return found

    patch.setattr(cache, "opened", watched)
    patch.setattr(BufferPass, "dense", reads.including(BufferPass.dense))


def read_in(
    loop: Decoding, reads: HostReads, prompt: Sequence[int], steps: int = 4
) -> list[list[str]]:
    """What each step read."""
    loop.begin(prompt)
    found = []
    for _ in range(steps):
        reads.seen.clear()
        with reads.counting():
            loop.step()
        found.append(list(reads.seen))
        if loop.finish_reason is not None:
            break
    return found


def declared(composition: Composition, loop: Decoding) -> int:
    """Reads a step may make, the processors' aside."""
    path_dependent = loop.lane.sampling.path_dependent
    rule = composition.accept
    extra = composition.drafter.traits.host_reads + composition.tree.host_reads
    return 1 + extra + (rule.host_reads(path_dependent) if isinstance(rule, ReadsHost) else 0)


def compose(family: str, drafter: str, tree: str, rule: str, how: How, **more: Any) -> Composition:
    """A composition by names."""
    model = toy() if family == "toy" else target(family)
    return Composition(
        target=model,
        drafter=drafter_of(drafter, family, more.pop("cache_name", "dynamic")),
        tree=tree_of(tree, how),
        accept=component("accept", rule),
        how=how,
        **more,
    )


def check(composition: Composition, prompt: Sequence[int], patch: pytest.MonkeyPatch) -> None:
    """Every step reads exactly as often as is declared."""
    reads = HostReads()
    watch(reads, composition.target, composition.cache, patch)
    drafter: Any = composition.drafter
    if hasattr(drafter, "model"):
        watch(reads, drafter.model, drafter._cache, patch)
    loop = composition.decoding(16)
    for seen in read_in(loop, reads, prompt):
        assert len(seen) == declared(composition, loop), seen


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize(("drafter", "tree", "rule", "how"), combinations())
def test_one_read_a_step(
    drafter: str,
    tree: str,
    rule: str,
    how: How,
    cache: str,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    composition = compose(
        "toy",
        drafter,
        tree,
        rule,
        how,
        cache=CACHE_MAKERS[cache](),
        cache_name=cache,
        sampling=sampling_config(temperature),
        stop=stop_config(eos=[0, 3]),
    )
    check(composition, (1, 2, 1, 2), monkeypatch)


@pytest.mark.parametrize(
    ("drafter", "how", "tree", "family"),
    in_turn(
        [
            (*way, tree)
            for way in (("ngram", "place"), ("noisy", "wor"))
            for tree in ("chain", "static", "dynamic")
        ],
        ("llama", "gemma3", "mixtral"),
    ),
)
def test_one_read_a_step_on_real_models(
    family: str, tree: str, drafter: str, how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cache in CACHE_MAKERS:
        hot = sampling_config(0.8, top_p=0.9, top_k=20)
        composition = compose(
            family, drafter, tree, "match", how, cache=CACHE_MAKERS[cache](), sampling=hot
        )
        check(composition, PROMPT, monkeypatch)


def test_mixtral_itself_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    composition = compose("mixtral", "ngram", "static", "match", "place")
    reads = HostReads()
    for seen in read_in(composition.decoding(16), reads, PROMPT):
        assert len(seen) == 1, seen


@pytest.mark.parametrize("rule", ["match", "rejection", "typical"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_path_dependent_processors(
    rule: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: How = "wor" if rule == "rejection" else "place"
    sampling = sampling_config(temperature, repetition_penalty=1.3)
    check(compose("toy", "noisy", "static", rule, how, sampling=sampling), (1, 2, 1), monkeypatch)


@pytest.mark.parametrize(
    ("more", "exact"),
    [({"processors": ["tests.test_syncs:Peeking"]}, True), ({"no_repeat_ngram_size": 3}, False)],
)
def test_processors_that_read_declare_it(
    more: dict[str, Any], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Declared per call. transformers' own may read less than that, as their releases differ."""
    composition = compose(
        "toy", "ngram", "chain", "match", "place", sampling=sampling_config(0.0, **more)
    )
    calls = []
    inner = Sampling.scores

    def counted(self: Sampling, ids: Tensor, logits: Tensor) -> Tensor:
        calls.append(ids.shape[0])
        return inner(self, ids, logits)

    monkeypatch.setattr(Sampling, "scores", counted)
    reads, loop = HostReads(), composition.decoding(12)
    loop.begin((1, 2, 3, 1, 2))
    while loop.finish_reason is None:
        reads.seen.clear()
        calls.clear()
        with reads.counting():
            loop.step()
        most = 1 + loop.lane.sampling.host_reads * len(calls)
        assert len(reads.seen) == most if exact else 1 <= len(reads.seen) <= most, reads.seen


class Peeking:
    """A processor that reads two values a call, and says so."""

    host_reads = 2

    def __call__(self, prefix: Tensor, scores: Tensor) -> Tensor:
        assert prefix.max().item() < scores.shape[-1]
        return scores + int(prefix[0, 0] < 0)


@pytest.mark.parametrize("method", ["lookahead", "recycling", "early exit", "cascade"])
def test_methods_read_what_they_declare(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = "llama" if method in ("lookahead", "early exit") else "toy"
    composition = compose(family, "none", "chain", "match", "place")
    made: dict[str, Callable[[], Any]] = {
        "lookahead": lambda: Lookahead(window=4, vocab_size=VOCAB),
        "recycling": lambda: Recycling(vocab_size=6, width=3),
        "early exit": lambda: EarlyExit(target=composition.target, layer=2),
        "cascade": lambda: Cascade(loop=Composition(target=toy()).decoding(60), length=1),
    }
    composition.drafter = made[method]()
    if method != "cascade":
        check(composition, PROMPT if family == "llama" else (1, 2, 3), monkeypatch)
        return
    # An inner loop reads once for each step of its own.
    reads, loop = HostReads(), composition.decoding(10)
    for seen in read_in(loop, reads, (1, 2, 3)):
        assert len(seen) == 2


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    ("word", "tree"),
    [*(("lookahead", tree) for tree in TREES), *(("recycling", tree) for tree in TREES[:3])],
)
def test_what_rides_along_costs_no_read(
    word: str, tree: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["target=toy", f"drafter={word}", f"tree={tree}", f"sampling.temperature={temperature}"]
    engine, reads = load(words), HostReads()
    watch(reads, engine.components.target, engine.components.cache, monkeypatch)
    for seen in read_in(engine.decoding(max_new_tokens=24), reads, (1, 2, 1, 2), steps=8):
        assert len(seen) == 1, seen


# The counter must be able to say no.


class Nosy(NoDraft):
    """Reads the root's token while drafting and declares nothing."""

    how: Callable[[Tensor], object]

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        type(self).how(frontier.tokens)
        return []


WAYS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda t: t.item(),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "to": lambda t: t.to("cpu"),
    "numpy": lambda t: t.numpy(),
    "int": lambda t: int(t),
    "float": lambda t: float(t),
    "bool": lambda t: bool(t == 1),
    "index": lambda t: [0] * t,  # type: ignore[operator]
    "if": lambda t: 1 if (t > 0).all() else 0,
    "nonzero": lambda t: torch.nonzero(t),
    "where": lambda t: torch.where(t > 0),
    "mask": lambda t: t[t > 0],
    "masked_select": lambda t: t.masked_select(t > 0),
    "unique": lambda t: t.unique(),
    "equal": lambda t: torch.equal(t, t),
    "repeat_interleave": lambda t: torch.repeat_interleave(t, t.clamp(0, 1)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_hidden_read_is_found(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nosy, "how", staticmethod(WAYS[way]), raising=False)
    composition = compose("toy", "none", "chain", "match", "place")
    composition.drafter = Nosy()
    loop, reads = composition.decoding(8), HostReads()
    for seen in read_in(loop, reads, (1, 2, 3)):
        assert len(seen) == 2, (way, seen)


def test_a_rule_that_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    composition = compose("toy", "ngram", "static", "match", "place")
    decide = type(composition.accept).decide

    def reading(self: AcceptRule, draft: Any, laws: Any, rng: Any) -> Any:
        verdict = decide(self, draft, laws, rng)
        assert int(verdict.count) > 0
        return verdict

    monkeypatch.setattr(type(composition.accept), "decide", reading)
    with pytest.raises(AssertionError):
        check(composition, (1, 2, 1), monkeypatch)
