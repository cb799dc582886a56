"""Several answers at once: each is the one that its prompt gets alone, whatever its company."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from specframe import load
from specframe.buffers.side_by_side import LanesPass, SideBySide
from specframe.cache.base import Opened
from specframe.cache.dynamic import DynamicCache
from specframe.drafter.base import Continuation, Retrieval
from specframe.errors import ConfigError
from specframe.records import StepRecord
from specframe.runtime.packed import Packed
from specframe.session.engine import Engine
from specframe.session.events import Event
from specframe.session.lanes import Lanes, Progress, Request
from specframe.target.base import causal_rows
from specframe.target.hf import HF
from specframe.testing.host_reads import HostReads
from specframe.types import Rows
from tests.small_models import Composition, drafter_of, lm_of, model, target, toy, tree_of
from tests.turns import rest_slow

PROMPTS = [[0, 1, 2, 0, 1], [3, 1, 4], [5], [2, 2, 2, 2, 2, 2, 2], [0, 1, 2, 0, 1], [4, 3, 2, 1]]
PACKED = Packed(weights="float32", drafts="bfloat16", kernel="own", cuda=None, buckets=None)
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def toy_engine(*words: str) -> Engine:
    return load(["target=toy", "max_new_tokens=20", "sampling.temperature=1", *words])


def texts(engine: Engine, prompts: Sequence[list[int]], batch_size: int) -> list[list[int]]:
    return [answer.tokens for answer in engine.generate([*prompts], batch_size=batch_size)]


def alone(engine: Engine, prompts: Sequence[list[int]]) -> list[list[int]]:
    return [engine.generate(prompt).tokens for prompt in prompts]


def progress(
    engine: Engine, prompts: Sequence[Sequence[int]], batch_size: int, **options: Any
) -> Iterator[Progress]:
    """Everything that happens, the numbers of the prompts being their noise's, too."""
    requests = [
        Request(number=number, prompt_tokens=prompt, sequence=number)
        for number, prompt in enumerate(prompts)
    ]
    return engine.lanes(batch_size, **options).run(requests)


@pytest.mark.parametrize(
    "words",
    rest_slow(
        [
            [("drafter=lm", "tree=static", "accept=rejection")],
            [("drafter=lm", "tree=dynamic")],
            [("drafter=router", "tree=native")],
        ]
    ),
)
def test_company_changes_no_text(words: list[tuple[str, ...]]) -> None:
    """Other prompts beside it, in another order, more lanes or fewer."""
    engine = toy_engine(*words[0])
    expected = alone(engine, PROMPTS)
    chance = random.Random(0)
    for batch_size in (2, 3, 5, 8):
        order = chance.sample(range(len(PROMPTS)), len(PROMPTS))
        company = [PROMPTS[place] for place in order]
        stranger = chance.randrange(len(company))
        company[stranger] = [chance.randrange(6) for _ in range(9)]
        found = texts(engine, company, batch_size)
        for place, (number, text) in enumerate(zip(order, found, strict=True)):
            assert place == stranger or text == expected[number]
    assert alone(engine, PROMPTS) == expected, "and none is changed by what came before"


def test_rows_of_lanes_are_bit_for_bit_those_alone() -> None:
    """Under `runtime=packed` in float32, taps included, whatever stands beside a lane."""
    made = HF.of(model("llama", **WIDE).float(), runtime=PACKED)
    engine = Composition(
        target=made, tree=tree_of("static"), drafter=lm_of(made, made), runtime=PACKED
    ).engine(16)
    prompts = [[7, 1, 9, 4, 4, 2, 8], [3, 5], list(range(40, 70))]

    class Logits:
        def __init__(self) -> None:
            self.steps: list[Tensor] = []

        def observe(self, record: StepRecord) -> None:
            self.steps.append(record.out.logits.clone())

    def watched(batch_size: int) -> list[Logits]:
        watchers = [Logits() for _ in prompts]
        requests = [
            Request(number=place, prompt_tokens=prompt, observers=[watcher])
            for place, (prompt, watcher) in enumerate(zip(prompts, watchers, strict=True))
        ]
        list(engine.lanes(batch_size).run(requests))
        return watchers

    for one, beside in zip(watched(1), watched(3), strict=True):
        assert len(one.steps) == len(beside.steps) > 3
        for mine, theirs in zip(one.steps, beside.steps, strict=True):
            assert torch.equal(mine, theirs)


def test_one_pass_and_one_read_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Composition(target=target("llama"), tree=tree_of("chain")).engine(12)
    passes: list[int] = []
    forward = HF.forward

    def counted(self: HF, rows: Rows, *args: Any, **kwargs: Any) -> Any:
        passes.append(len(rows.sizes or (1,)))
        return forward(self, rows, *args, **kwargs)

    run = engine.lanes(4).run(
        [Request(number=place, prompt_tokens=[1, 2, place]) for place in range(4)]
    )
    for _ in range(4):
        next(run)  # prefills
    reads = HostReads()
    monkeypatch.setattr(HF, "forward", reads.excluding(counted))
    with reads.counting():
        for _ in range(4):
            next(run)
    assert passes == [4]
    assert reads.seen == ["tolist"]


def test_a_free_lane_takes_the_next_prompt_at_once() -> None:
    engine = load(["target=toy", "drafter=none", "max_new_tokens=6", "stop.eos=[2]"])
    begun, together, full = [], Counter[int](), set()
    marks = []  # kept, so that no number comes twice
    for each in progress(engine, [[place % 6, place % 5] for place in range(12)], 3):
        assert each.emission is not None
        record = each.emission.record
        if record is None:
            begun.append(each.request.number)
        else:
            step = id(record.marks)  # one list of stamps for all lanes of a step
            together[step] += 1
            marks.append(record.marks)
            if len(begun) < 12:
                full.add(step)
    assert begun == list(range(12))
    assert len(full) > 5
    assert {together[step] for step in full} == {3}


def test_a_prompt_that_is_refused_disturbs_no_other() -> None:
    engine = toy_engine("drafter=ngram", "tree=chain")
    found = list(progress(engine, [[1, 2], [], [9, 9], [3]], 2))
    refused = {each.request.number: str(each.error) for each in found if each.error}
    assert refused.keys() == {1, 2}
    assert "the prompt is empty" in refused[1]
    assert "outside of 0 .. 5" in refused[2]
    assert {each.request.number for each in found if each.is_over} == {0, 1, 2, 3}
    with pytest.raises(ConfigError, match="the prompt is empty"):
        engine.generate([[1, 2], []], batch_size=2)


def test_a_list_in_a_list_out() -> None:
    engine = toy_engine("drafter=ngram", "tree=chain", "stop.eos=[3]")
    prompts = ["abc", "cab", "bab"]
    expected = [engine.generate(prompt, log_probs=True) for prompt in prompts]
    found = engine.generate(prompts, batch_size=2, log_probs=True)
    assert found == expected
    assert [one.log_probs for one in found] == [one.log_probs for one in expected]
    assert all(one.prefill_s > 0 and one.decode_s >= 0 for one in found)
    assert engine.generate(["abc"], log_probs=True) == expected[:1]
    with pytest.raises(ConfigError, match="batch_size=0 is out of range"):
        engine.generate(prompts, batch_size=0)


def test_several_streams_are_those_of_one_each() -> None:
    engine = load(["target=toy", "drafter=lm", "tree=static", "max_new_tokens=12"])
    prompts = ["abc", "cab", "bab", "f"]
    requests = [
        Request(number=number, prompt_tokens=engine.encode(prompt))
        for number, prompt in enumerate(prompts)
    ]
    found: dict[int, list[Event]] = {}
    order = []
    for number, event in engine.lanes(2).events(requests):
        found.setdefault(number, []).append(event)
        order.append(number)
    assert found == {i: [*engine.stream(prompt)] for i, prompt in enumerate(prompts)}
    assert order != sorted(order), "they come side by side"


@pytest.mark.slow
def test_memory_is_flat_over_many_prompts() -> None:
    """300 prompts in eight lanes leave no tensors behind."""
    engine = Composition(
        target=target("llama"), drafter=drafter_of("noisy", "llama"), tree=tree_of("dynamic")
    ).engine(6)
    prompts = [[1 + place % 7, 2 + place % 5, 3] for place in range(300)]

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(each, Tensor) for each in gc.get_objects())

    engine.generate(prompts[:40], batch_size=8)
    before = tensors()
    engine.generate(prompts, batch_size=8)
    assert tensors() <= before + 40, "a lane keeps what its last answer needed, and no more"


# Controls: what would make an answer depend on its company is seen by the tests above.


class Gossip(Retrieval):
    """Drafts what any lane has written last: its list belongs to the class."""

    said: ClassVar[list[int]] = []

    def continuations(self) -> Sequence[Continuation]:
        self.said[:] = [*self.said, *self.context.tokens[-2:]][-4:]
        return [Continuation(list(self.said))]


def drafts(engine: Engine, batch_size: int) -> dict[int, list[list[int]]]:
    """The drafted tokens of each step of each prompt."""
    found: dict[int, list[list[int]]] = {}
    for each in progress(engine, PROMPTS, batch_size):
        assert each.emission is not None
        if each.emission.record is not None:
            tokens = each.emission.record.draft.tokens.tolist()
            found.setdefault(each.request.number, []).append(tokens)
    return found


def test_control_a_list_of_the_class_is_seen_in_the_drafts() -> None:
    made = Composition(target=toy(), drafter=Gossip(), tree=tree_of("chain"))
    assert drafts(made.engine(12), 1) != drafts(made.engine(12), 3)
    honest = Composition(target=toy(), drafter=lm_of(toy(blend=0.3), toy()), tree=tree_of("static"))
    assert drafts(honest.engine(12), 1) == drafts(honest.engine(12), 3)


def test_control_noise_of_the_lane_is_seen_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine("drafter=none")
    expected = alone(engine, PROMPTS)
    begin = Lanes._begin
    monkeypatch.setattr(
        Lanes,
        "_begin",
        lambda self, lane, request: begin(self, lane, replace(request, sequence=lane)),
    )
    assert texts(engine, PROMPTS, 3) != expected


def test_control_another_lanes_columns_are_seen_in_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Composition(target=target("llama")).engine(12)
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    expected = alone(engine, prompts)
    assert texts(engine, prompts, 3) == expected
    opened = SideBySide.opened

    def swapped(self: SideBySide, rows: Rows) -> Opened:
        return opened(self, replace(rows, lanes=rows.lanes[::-1]))

    monkeypatch.setattr(SideBySide, "opened", swapped)
    assert texts(engine, prompts, 3) != expected


def lane_pass(length: int, row: int) -> Opened:
    """A pass of one row behind so many columns of random keys."""
    made = DynamicCache()
    made.open(0, columns=64, device=torch.device("cpu"))
    fill = torch.randn((2, length, 16), generator=torch.Generator().manual_seed(length))
    rows = causal_rows(torch.zeros(length, dtype=torch.long), made)
    made.opened(rows).dense(0, fill[None], fill[None])
    made.commit(rows.slots, [length], moved=[False])
    rows = causal_rows(torch.tensor([row]), made)
    return made.opened(replace(rows, sees=torch.ones((1, 1), dtype=torch.bool)))


def test_control_one_mask_over_all_lanes_is_another_sum() -> None:
    """Attention is answered lane by lane, since a joint sum has other bits."""
    lengths = (3, 40, 17)
    entries = [torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(9)) for _ in range(3)]

    def joined() -> LanesPass:
        return LanesPass([lane_pass(length, 0) for length in lengths])

    own = [
        lane_pass(length, 0).attend(0, *(entry[:, place : place + 1] for entry in entries))
        for place, length in enumerate(lengths)
    ]
    assert torch.equal(joined().attend(0, *entries), torch.cat(own, dim=1))
    wide = Opened.attend(joined(), 0, *entries)
    torch.testing.assert_close(wide, torch.cat(own, dim=1))
    assert not torch.equal(wide, torch.cat(own, dim=1))
