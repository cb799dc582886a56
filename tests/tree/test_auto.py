"""tree=auto through the real loop, with costs that are given, so that every choice is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specframe import load
from specframe.accept.rejection import Rejection
from specframe.drafter.base import Drafter
from specframe.drafter.ngram import Ngram
from specframe.lookup.foresight import Prospect, prospects_of
from specframe.lookup.trie import Trie
from specframe.planning.cost_table import CostTable, DraftCost
from specframe.planning.tree_speed import TreeSpeeds
from specframe.records import StepRecord
from specframe.task.certify.enumeration import Enumerator, branches, exact_law, max_error
from specframe.testing.defaults import component
from specframe.testing.draft_checks import builder, paths, plain_sampling
from specframe.testing.host_reads import HostReads
from specframe.tree.auto import AutoTree
from specframe.types import Budget, Frontier, Proposal
from tests.methods import Lookahead
from tests.small_models import (
    PROMPT,
    VOCAB,
    Composition,
    decode,
    drafter_of,
    lm_of,
    oracle,
    sampling_config,
    target,
    toy,
)

RIGHT = ((0.6, 0.2, 0.1), (0.5, 0.2, 0.1), (0.4, 0.2, 0.1))
# A row more costs nothing, and a row more costs a pass.
FREE = CostTable(
    rows=(1, 64),
    contexts=(8,),
    pass_ms=((10.0, 10.5),),
    looks_up=True,
    drafts={"lm": DraftCost(root_ms=0.5, widths=(1, 8), level_ms=(0.5, 0.5))},
    right={"lm": RIGHT},
)
DEAR = replace(FREE, rows=(1, 2), pass_ms=((10.0, 20.0),))
COPIED = (5, 17, 42, 8, 61, 3, 90, 5, 17, 42, 8)  # its end has occurred


def auto(costs: CostTable, **changes: Any) -> AutoTree:
    made: AutoTree = component(
        "tree", "auto", **{"proposal": "place", "depth": 4, "margin": 0.0, **changes}
    )
    return made.with_costs(costs)


class Watched(Drafter):
    """A drafter that counts its expansions."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.expanded = inner, 0
        self.traits = inner.traits
        for verb in ("begin", "observe", "truncate", "aux", "readback"):
            setattr(self, verb, getattr(inner, verb))
        expand = inner.expand

        def counted(frontier: Frontier) -> Sequence[Proposal]:
            self.expanded += 1
            return expand(frontier)

        inner.expand = counted  # type: ignore[method-assign]

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        return self.inner.expand(frontier)

    def prospects(self) -> Sequence[Prospect]:
        return prospects_of(self.inner)


@pytest.mark.parametrize("kind", ["noisy", "ngram"])
def test_where_nothing_pays_nothing_is_drafted(kind: str) -> None:
    drafter = Watched(drafter_of(kind, "llama"))
    composed = Composition(target=target("llama"), drafter=drafter, tree=auto(DEAR))
    outcome = decode(composed, PROMPT, 20)
    assert outcome.tokens == oracle("llama", PROMPT, 20)
    assert [record.draft.num_rows for record in outcome.records] == [1] * len(outcome.records)
    assert drafter.expanded == 0


def test_a_network_drafts_the_tree_of_the_table() -> None:
    drafter = Watched(drafter_of("perfect", "llama"))
    composed = Composition(target=target("llama"), drafter=drafter, tree=auto(FREE, max_nodes=9))
    outcome = decode(composed, PROMPT, 30)
    assert outcome.tokens == oracle("llama", PROMPT, 30)
    speeds = TreeSpeeds(costs=FREE, source="lm", right=RIGHT, context=64, closed=False)
    best = speeds.fastest(rows=9, depth=4)
    assert outcome.records[0].draft.num_rows == best.rows == 9
    assert outcome.records[0].num_accepted == max(map(len, best.paths)) > 1
    assert drafter.expanded > 0


def test_it_unlearns_what_the_text_refuses() -> None:
    """A table that promises much of a draft that is never right is not believed for long."""
    middling = replace(FREE, rows=(1, 2, 64), pass_ms=((10.0, 13.0, 60.0),))
    promised = replace(middling, right={"lm": ((0.7, 0.01),)})
    drafter = Watched(drafter_of("bad", "llama"))
    composed = Composition(target=target("llama"), drafter=drafter, tree=auto(promised, weight=0.5))
    outcome = decode(composed, PROMPT, 60)
    assert outcome.tokens == oracle("llama", PROMPT, 60)
    rows = [record.draft.num_rows for record in outcome.records]
    assert rows[0] > 1
    assert set(rows[20:]) == {1}


def test_what_was_learnt_is_forgotten_with_the_sequence() -> None:
    composed = Composition(target=target("llama"), drafter=drafter_of("bad", "llama"))
    composed.tree = auto(replace(FREE, right={"lm": ((0.7, 0.2),)}), weight=0.5)
    first = [record.draft.num_rows for record in decode(composed, PROMPT, 40).records]
    again = [record.draft.num_rows for record in decode(composed, PROMPT, 40).records]
    assert first == again


def test_a_look_up_is_drafted_where_its_chance_pays() -> None:
    """After one matched token 0.1 + ..., after three 0.9: a row costs half a pass."""
    half = replace(FREE, rows=(1, 2), pass_ms=((10.0, 15.0),))
    drafter = Ngram(n_max=4, n_min=1, length=6, max_matches=4)
    policy = auto(half, chances=[0.1, 0.2, 0.9], weight=1000)
    composed = Composition(target=target("llama"), drafter=drafter, tree=policy)
    loop = composed.decoding(40)
    loop.begin(COPIED)
    drafted = 0
    while loop.finish_reason is None:
        length = drafter.match_length
        record = loop.step()
        if record.draft.num_rows > 1:
            drafted += 1
            assert length >= 3
        elif length >= 3:
            assert loop.finish_reason is not None, "a sure match is drafted"
    anew = Composition(target=target("llama"))
    assert loop.context.tokens[len(COPIED) :] == decode(anew, COPIED, 40).tokens
    assert drafted or drafter.match_length < 3


class Known:
    """A source that has looked four tokens up."""

    def prospects(self) -> Sequence[Prospect]:
        trie = Trie(max_nodes=8)
        trie.add((9, 3, 10, 5))
        return [Prospect(source="text", expand=self.expand, known=trie, match_length=3)]

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        raise AssertionError("what is known is not asked for")


def test_it_takes_as_many_looked_up_nodes_as_are_fastest() -> None:
    line = (10.0, 11.0, 12.0, 18.0, 24.0)
    steep = replace(FREE, rows=(1, 2, 3, 4, 5), pass_ms=(line,), lookup_ms=1.0)
    made = builder()
    # 1.8 / 12, 2.44 / 13 and 2.95 / 19 tokens a millisecond.
    auto(steep, chances=[0.8]).grow(made, Known(), Budget(rows=16, depth=8))  # type: ignore[arg-type]
    assert paths(made.build()) == [(9,), (9, 3)]


@pytest.mark.parametrize("costs", [FREE, DEAR])
def test_of_several_sources_the_fastest_drafts_alone(costs: CostTable, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"fingerprint": {}, "costs": costs.as_dict()}), encoding="utf-8")
    words = ["target=toy", "seed=3", "drafter=router", "tree=auto", f"tree.costs={file}"]
    engine = load(words)
    loop = engine.decoding(max_new_tokens=30)
    loop.begin((1, 2, 3, 1, 2))
    rows = []
    while loop.finish_reason is None:
        rows.append(loop.step().draft.num_rows)
    plain = load(["target=toy", "seed=3", "drafter=none"]).generate(
        (1, 2, 3, 1, 2), max_new_tokens=30
    )
    assert loop.context.tokens[5:] == plain.tokens
    assert max(rows) == 1 if costs is DEAR else max(rows) > 4


@pytest.mark.parametrize(("factor", "fed"), [(1.0, True), (3.0, False)])
def test_auxiliary_rows_are_left_out_where_they_do_not_pay(factor: float, fed: bool) -> None:
    costs = CostTable(rows=(1, 32), contexts=(8,), pass_ms=((10.0, 10.0 * factor),), looks_up=True)
    drafter = Lookahead(window=5, vocab_size=VOCAB)
    policy = auto(costs, aux_tokens=1.2, weight=1e6)
    outcome = decode(Composition(target=target("llama"), drafter=drafter, tree=policy), PROMPT, 20)
    assert outcome.tokens == oracle("llama", PROMPT, 20)
    assert {record.draft.aux is not None for record in outcome.records[:-1]} == {fed}


def law(*, closed: bool) -> dict[tuple[int, ...], float]:
    """The exact law of three tokens under rejection with drawn children, all branches walked."""
    outer = toy(vocab_size=3)
    wide = replace(FREE, right={"lm": ((0.5, 0.3), (0.5, 0.3))})

    def once(rng: Enumerator) -> tuple[int, ...]:
        policy = auto(wide, max_nodes=4, proposal="wor" if closed else "place", depth=2)
        composed = Composition(
            target=outer,
            drafter=lm_of(toy(vocab_size=3, blend=0.5), outer),
            tree=policy,
            accept=Rejection(),
            how="wor",
            sampling=sampling_config(1.0),
        )
        loop = composed.decoding(3)
        loop.terms = replace(loop.terms, streams=lambda sequence: rng)
        tokens = loop.begin((0, 1))
        while loop.finish_reason is None:
            tokens += loop.step().tokens
        return tuple(tokens)

    found: dict[tuple[int, ...], float] = {}
    for tokens, probability in branches(once, max_branches=60_000):
        found[tokens] = found.get(tokens, 0.0) + probability
    return found


def test_it_is_exact_under_rejection_with_draws() -> None:
    reference = exact_law(toy(vocab_size=3), plain_sampling(1.0), (0, 1), length=3)
    assert max_error(law(closed=True), reference) < 1e-12


@pytest.mark.parametrize("kind", ["ngram", "noisy"])
def test_it_reads_nothing_on_the_host(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed = Composition(
        target=toy(), drafter=drafter_of(kind, "toy"), tree=auto(FREE, max_nodes=8)
    )
    reads, loop = HostReads(), composed.decoding(16)
    monkeypatch.setattr(composed.cache, "opened", reads.including(composed.cache.opened))
    loop.begin((1, 2, 1, 2))
    sizes = []
    for _ in range(4):
        reads.seen.clear()
        with reads.counting():
            record: StepRecord = loop.step()
        sizes.append(record.draft.num_rows)
        assert len(reads.seen) == 1, reads.seen
    assert max(sizes) > 1


def test_it_says_why() -> None:
    text = auto(FREE, max_nodes=16).explanation
    assert text is not None
    assert "lm drafts 16 rows, 3 deep" in text
    assert "drafted from 1 matched token on" in text
    text = auto(DEAR).explanation
    assert text is not None
    assert "lm drafts nothing" in text and "60 %" in text and "2.05 times" in text
    assert "never drafted" in text


def test_a_gain_below_the_margin_is_none() -> None:
    """Two rows in 1.5 steps with 1.6 tokens gain 6 %."""
    close = replace(
        FREE, rows=(1, 2, 3), pass_ms=((10.0, 14.5, 40.0),), right={"lm": ((0.6, 0.0),)}
    )
    for margin, rows in ((0.0, 2), (0.06, 2), (0.07, 1)):
        composed = Composition(target=target("llama"), drafter=drafter_of("perfect", "llama"))
        composed.tree = auto(close, margin=margin)
        assert decode(composed, PROMPT, 4).records[0].draft.num_rows == rows
    text = auto(close, margin=0.07).explanation
    assert text is not None and "less than 7% gained" in text


def test_no_chances_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tree\.chances is empty"):
        auto(FREE, chances=[])
