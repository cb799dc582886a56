"""A fork has a state of its own and shares what is only read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from specframe import load
from specframe.cache.dynamic import DynamicCache
from specframe.drafter.base import DRAFTERS
from specframe.errors import IncompatibleComponents
from specframe.session.forking import fork, forked
from specframe.target.base import causal_rows


class Notes:
    """Something with a state, a network, a thing that is only read, and a full cache."""

    def __init__(self) -> None:
        self.words: list[Any] = [1, {"deep": [2]}]
        self.net = nn.Linear(3, 3)
        self.book = Book()
        self.cache = DynamicCache()
        self.last = torch.ones(3)
        self.again = self.words
        self.verb = self.note

    def note(self, word: int) -> None:
        self.words.append(word)


class Book:
    shared_by_lanes = True


def test_it_shares_what_is_only_read() -> None:
    notes = Notes()
    other = fork(notes)
    assert other is not notes
    assert other.net is notes.net
    assert other.book is notes.book
    other.verb(5)
    other.words[1]["deep"].append(3)
    other.last += 1
    assert notes.words == [1, {"deep": [2]}]
    assert notes.last.tolist() == [1, 1, 1]
    assert other.words is other.again, "what is one object stays one"


def test_no_cache_is_copied_full() -> None:
    notes = Notes()
    notes.cache.open(0, columns=64, device=torch.device("cpu"))
    rows = causal_rows(torch.zeros(4, dtype=torch.long), notes.cache)
    notes.cache.opened(rows).dense(0, torch.ones(1, 2, 4, 8), torch.ones(1, 2, 4, 8))
    notes.cache.commit(rows.slots, [4], moved=[False])
    other = fork(notes)
    assert other.cache is not notes.cache
    assert other.cache.layers == ()
    assert other.cache.lengths == [0]


def test_components_share_target_and_runtime() -> None:
    parts = load(["target=toy", "drafter=lm", "tree=dynamic"]).components
    other = forked(parts)
    assert other.target is parts.target
    assert other.runtime is parts.runtime
    assert other.lock is parts.lock
    assert other.drafter.model is parts.drafter.model  # type: ignore[attr-defined]
    for name in ("drafter", "tree", "cache"):
        assert getattr(other, name) is not getattr(parts, name)
    assert forked(other).drafter is not other.drafter


def test_a_fork_of_several_sources_has_sources_of_its_own() -> None:
    parts = load(["target=toy", "drafter=router"]).components
    mine, theirs = parts.drafter.drafters, forked(parts).drafter.drafters  # type: ignore[attr-defined]
    assert len(mine) == len(theirs) > 1
    assert not {id(one) for one in mine} & {id(one) for one in theirs}


def test_memory_of_earlier_prompts_is_refused_where_drafts_decide_the_text() -> None:
    words = ["target=toy", "drafter=recycling", "tree=chain", "drafter.keep=true"]
    load([*words]).generate([[1, 2], [3, 4]], batch_size=2)
    engine = load([*words, "accept=typical"])
    with pytest.raises(IncompatibleComponents, match=r"batch_size=2: .* use accept=match"):
        engine.generate([[1, 2], [3, 4]], batch_size=2)
    assert len(engine.generate([[1, 2], [3, 4]])) == 2
    assert "recycling" in DRAFTERS.names()
