"""Recorded passes compute what those as written do: rehearsed on a CPU with a graph's own limits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from specframe.drafter.base import Drafter
from specframe.drafter.eagle import Eagle
from specframe.drafter.eagle3 import Eagle3
from specframe.drafter.medusa import Medusa
from specframe.drafter.mtp import MTP
from specframe.runtime.base import Runtime
from specframe.target.hf import HF
from specframe.types import How
from tests.checkpoint.heads import LAYERS, eagle3_net, eagle_net, mtp_net
from tests.checkpoint.medusa_heads import medusa_net
from tests.contract import make
from tests.models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    Composition,
    Outcome,
    decode,
    draft,
    drafter_of,
    lm_of,
    model,
    raw,
    sampling_config,
    tree_of,
)
from tests.runtime.rehearsal import Rehearsal, rehearsed

TEXTS = ((PROMPT, 12), (LONG_PROMPT, 12), ((7,), 30), (PROMPT, 12))
DRAFTERS = ("none", "ngram", "lm", "medusa", "eagle", "eagle3", "mtp")
RULES: tuple[tuple[str, How, float], ...] = (
    ("match", "place", 0.0),
    ("match", "coupled", 1.0),
    ("match", "iid", 0.9),
    ("rejection", "place", 0.9),
    ("rejection", "wor", 0.8),
    ("typical", "place", 0.0),
    ("typical", "iid", 0.7),
)


def drafter_on(kind: str, target: HF, runtime: Runtime, cache: str) -> Drafter:
    """A drafter of a kind on a runtime, with a random head if it has one."""
    held: dict[str, Any] = {"target": target, "runtime": runtime}
    if kind == "medusa":
        return Medusa.of(medusa_net(), **held)
    if kind == "lm":
        small = model("llama")
        small.load_state_dict(draft("llama", "noisy").model.state_dict())
        return lm_of(HF.of(small, runtime=runtime), target, cache)
    if kind not in ("eagle", "eagle3", "mtp"):
        return drafter_of(kind, "llama", cache)
    held["cache"] = CACHE_MAKERS[cache]()
    if kind == "eagle":
        return Eagle.of(eagle_net(), **held)
    if kind == "eagle3":
        return Eagle3.of(eagle3_net(), layers=LAYERS, **held)
    return MTP.of(mtp_net(modules=2), **held)


def composed(
    kind: str, tree: str, rule: tuple[str, How, float], cache: str, runtime: Runtime, **more: Any
) -> Composition:
    """Everything on one runtime."""
    word, how, temperature = rule
    target = HF.of(copy.deepcopy(raw(more.pop("family", "llama"))), runtime=runtime)
    return Composition(
        target=target,
        drafter=drafter_on(kind, target, runtime, cache),
        tree=tree_of(tree, how),
        accept=make("accept", word),
        cache=CACHE_MAKERS[cache](),
        runtime=runtime,
        how=how,
        sampling=sampling_config(temperature, **more),
    )


def outcomes(made: Composition) -> Iterator[Outcome]:
    for sequence, (prompt, count) in enumerate(TEXTS):
        yield decode(made, prompt, count, sequence=sequence)


def same(one: Outcome, other: Outcome) -> bool:
    """The same text by the same drafts, laws and paths."""
    if one.tokens != other.tokens or len(one.records) != len(other.records):
        return False
    for mine, theirs in zip(one.records, other.records, strict=True):
        if mine.path != theirs.path or len(mine.draft.calls) != len(theirs.draft.calls):
            return False
        pairs = [(getattr(mine.draft, name), getattr(theirs.draft, name)) for name in NAMES]
        pairs += [
            (call.law, twin.law)
            for call, twin in zip(mine.draft.calls, theirs.draft.calls, strict=True)
            if call.law is not None and twin.law is not None
        ]
        pairs.append((mine.out.logits, theirs.out.logits))
        if not all(a.shape == b.shape and torch.allclose(a, b) for a, b in pairs):
            return False
    return True


NAMES = ("tokens", "parents", "alive", "depths", "origin", "row_of", "slots")


def cases() -> list[tuple[str, str, tuple[str, How, float], str]]:
    """(drafter, tree, rule, cache) that go together."""
    found = []
    for kind in DRAFTERS:
        for tree in ("chain", "static", "dynamic"):
            for word, how, temperature in RULES:
                drawn = how != "place"
                unfit = drawn and (
                    kind in ("none", "ngram") or (tree == "dynamic" and word != "match")
                )
                if not unfit:
                    cache = ("static", "dynamic")[len(found) % 2]
                    found.append((kind, tree, (word, how, temperature), cache))
    return found


@pytest.mark.parametrize(("kind", "tree", "rule", "cache"), cases())
def test_replays_are_what_is_written(
    kind: str, tree: str, rule: tuple[str, How, float], cache: str
) -> None:
    runtime = rehearsed()
    theirs = outcomes(composed(kind, tree, rule, cache, RUNTIME))
    for mine, plain in zip(
        outcomes(composed(kind, tree, rule, cache, runtime)), theirs, strict=True
    ):
        assert same(mine, plain)
    assert isinstance(runtime.recorder, Rehearsal)
    assert runtime.recorder.replays > runtime.recorder.warmed
    assert not runtime._refused
