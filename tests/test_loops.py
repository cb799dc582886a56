"""Going back, a loop inside a drafter, and what a record promises."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.drafter.none import NoDraft
from specframe.law.streams import Streams
from specframe.loop import Decoding
from specframe.records import Context, StepRecord
from specframe.target.toy import Toy
from specframe.tree.chain import ChainTree
from specframe.types import TargetOutput
from tests.drafter.edges import nested_law
from tests.methods import Cascade
from tests.small_models import (
    CACHE_MAKERS,
    PROMPT,
    Composition,
    assert_fresh,
    decode,
    drafter_of,
    lm_of,
    raw,
    sampling_config,
    stop_config,
    target,
    toy,
    tree_of,
)

# Going back


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("kind", ["none", "ngram", "noisy"])
@pytest.mark.parametrize("tail", [(), (4,), (4, 88, 17, 42)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_truncate(kind: str, tail: tuple[int, ...], cache: str, temperature: float) -> None:
    composition = Composition(
        target=target("llama"),
        drafter=drafter_of(kind, "llama", cache),
        tree=tree_of("static"),
        cache=CACHE_MAKERS[cache](),
        sampling=sampling_config(temperature),
    )
    loop = composition.decoding(24)
    loop.begin(PROMPT)
    while len(loop.context) < len(PROMPT) + 9:
        loop.step()
    kept = len(PROMPT) + 4
    prefix = [*loop.context.tokens[:kept], *tail]
    loop.truncate(kept, tail)
    assert loop.context.tokens == prefix
    assert composition.cache.lengths[0] == len(prefix) - 1
    assert_fresh(composition.cache, raw("llama"), prefix)
    while loop.finish_reason is None:
        loop.step()
    anew = Composition(target=target("llama"), sampling=sampling_config(temperature))
    fresh = decode(anew, prefix, len(PROMPT) + 24 - len(prefix))
    assert loop.context.tokens == [*prefix, *fresh.tokens]


class Listening(NoDraft):
    """Writes down what it is told."""

    def begin(self, context: Context, out: TargetOutput) -> None:
        self.heard = list(context.tokens)

    def observe(self, record: StepRecord) -> None:
        assert record.length_before == len(self.heard)
        assert record.out.logits.shape[0] == record.draft.num_rows
        self.heard += record.tokens

    def truncate(self, length: int) -> None:
        del self.heard[length:]


def test_a_drafter_hears_of_every_token_a_tail_included() -> None:
    drafter = Listening()
    loop = Composition(target=toy(), drafter=drafter).decoding(30)
    loop.begin((1, 2, 3))
    for kept, tail in ((5, (4, 4, 0)), (6, ()), (6, (2,))):
        for _ in range(3):
            loop.step()
        loop.truncate(kept, tail)
        assert drafter.heard == loop.context.tokens
        assert loop.context.tokens[kept:] == list(tail)


def test_truncate_to_the_prompt_needs_a_tail() -> None:
    loop = Composition(target=toy()).decoding(8)
    loop.begin((1, 2, 3))
    loop.step()
    for length in (3, 2, 99):
        with pytest.raises(ValueError, match=f"cannot truncate 5 tokens to {length}"):
            loop.truncate(length)
    loop.truncate(3, (4,))
    assert loop.context.tokens == [1, 2, 3, 4]


def test_a_tail_may_fill_the_room() -> None:
    loop = Composition(target=toy()).decoding(6)
    loop.begin((1, 2, 3))
    loop.truncate(3, (4, 5, 0, 1, 2, 3))
    assert len(loop.context) == 9
    assert loop.finish_reason == "length"


# A loop inside a drafter


def cascade(
    *, rule: AcceptRule, temperature: float, family: str = "toy", **more: Any
) -> Composition:
    """A draft that is itself decoded speculatively: inner target, inner draft, inner tree."""
    if family == "toy":
        outer, inner, small = toy(), toy(blend=0.3), toy(blend=0.6)
    else:
        outer, inner, small = (target("llama"), drafter_of("noisy", "llama").model, None)  # type: ignore[attr-defined]
    draft = drafter_of("ngram", "toy") if small is None else lm_of(small, inner)
    sampling = sampling_config(temperature)
    loop = Composition(
        target=inner, drafter=draft, tree=tree_of("static"), sampling=sampling, seed=1
    ).decoding(200)
    return Composition(
        target=outer,
        drafter=Cascade(loop=loop, length=4, **more),
        tree=ChainTree(depth=6, max_nodes=8, proposal="place"),
        accept=rule,
        sampling=sampling,
    )


@pytest.mark.parametrize("family", ["toy", "llama"])
@pytest.mark.parametrize("rule", [Match(), Rejection()])
def test_cascade_is_greedy_at_zero(rule: AcceptRule, family: str) -> None:
    prompt = (1, 2, 3)
    outcome = decode(cascade(rule=rule, temperature=0.0, family=family), prompt, 30)
    plain = decode(Composition(target=toy() if family == "toy" else target("llama")), prompt, 30)
    assert outcome.tokens == plain.tokens
    if family == "toy":
        assert outcome.num_accepted > 0


def test_cascade_under_match_is_the_text_of_the_seed() -> None:
    outcome = decode(cascade(rule=Match(), temperature=1.0), (1, 2, 3), 40)
    plain = decode(Composition(target=toy(), sampling=sampling_config(1.0)), (1, 2, 3), 40)
    assert outcome.tokens == plain.tokens


def test_cascade_under_rejection_is_exact() -> None:
    def error(*, honest: bool) -> float:
        def drafter(inner: Decoding, model: Toy, large: Toy) -> Cascade:
            return Cascade(loop=inner, length=1, honest=honest)

        return nested_law(drafter, length=3, rule=Rejection(), how="iid")

    assert error(honest=True) < 1e-12
    assert error(honest=False) > 1e-3, "a draft that lies about its law must be caught"


# What a record says


def check_record(record: StepRecord, context: list[int]) -> None:
    """The promises of StepRecord and Verdict."""
    draft, tokens, path = record.draft, record.tokens, record.path
    assert len(path) == len(tokens) - 1
    walked = [0, *path]
    assert all(int(draft.parents[row]) == above for above, row in itertools.pairwise(walked))
    drafted = [int(draft.tokens[row]) for row in path]
    assert tokens[:-1] == drafted
    whole = record.verdict.path[0, : int(record.verdict.count) - 1].tolist()
    assert whole[: len(path)] == path
    if record.was_cut:
        assert record.num_accepted == len(tokens)
        assert tokens[-1] == int(draft.tokens[whole[len(path)]])
        assert record.finish_reason is not None
    else:
        assert record.num_accepted == len(path)
        assert len(tokens) == int(record.verdict.count)
    assert context[record.length_before :] == tokens
    assert [phase for phase, _ in record.marks] == [
        "start",
        "draft",
        "verify",
        "accept",
        "commit",
        "host",
    ]


@pytest.mark.parametrize("rule", [Match(), Rejection()])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_records(rule: AcceptRule, temperature: float) -> None:
    was_cut = 0
    for eos, seed, tree in itertools.product(([], [2], [0, 4]), range(4), ("chain", "static")):
        how = "wor" if temperature and isinstance(rule, Rejection) else "place"
        composition = Composition(
            target=toy(),
            drafter=drafter_of("perfect", "toy"),
            tree=tree_of(tree, how),  # type: ignore[arg-type]
            accept=rule,
            how=how,  # type: ignore[arg-type]
            sampling=sampling_config(temperature),
            stop=stop_config(eos=eos),
            seed=seed,
        )
        loop = composition.decoding(13)
        loop.begin((1, 2, 3, seed))
        while loop.finish_reason is None:
            record = loop.step()
            check_record(copy.copy(record), loop.context.tokens)
            was_cut += record.was_cut
        assert len(loop.context) <= 4 + 13
        assert loop.context.tokens[-1] in eos or len(loop.context) == 4 + 13
    assert was_cut, "some text must end inside a draft"


def test_streams_of_a_sequence_are_its_own() -> None:
    texts = [
        decode(
            Composition(target=toy(), sampling=sampling_config(1.0)), (1, 2), 20, sequence=n
        ).tokens
        for n in (0, 1, 0)
    ]
    assert texts[0] == texts[2] != texts[1]
    assert Streams(seed=0, sequence=1).sequence == 1
