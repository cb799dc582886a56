"""The engine as a user holds it: prompts in, events and text out."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.errors import ConfigError
from specframe.session.engine import Engine
from specframe.session.events import Event
from specframe.session.generation import Generation
from specframe.session.row_table import RowTable
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    Composition,
    drafter_of,
    lm_of,
    oracle,
    sampling_config,
    speller,
    stop_config,
    target,
    toy,
    tree_of,
)

ANSWER = "Yes \U0001f600\U0001f44d\U0001f3fd, naïve — done\n"
SCRIPT = '''
import torch

class Says:
    """Only one answer is possible."""
    prompt, answer = 0, []

    def __call__(self, ids, scores):
        place = ids.shape[1] - self.prompt
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.answer[min(place, len(self.answer) - 1)]] = 0
        return forced
'''


def collect(stream: Generator[Event, None, Generation]) -> tuple[list[Event], Generation]:
    events = []
    while True:
        try:
            events.append(next(stream))
        except StopIteration as stop:
            return events, stop.value


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A processor under which `speller()` answers what the test wants: says(prompt, ids)."""
    name = f"says_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def choose(prompt_length: int, answer: list[int]) -> list[str]:
        module = __import__(name)
        module.Says.prompt, module.Says.answer = prompt_length, answer
        return [f"{name}:Says"]

    return choose


def scripted(says: Any, kind: str, tree: str, *, count: int) -> Engine:
    made = speller()
    prompt = made.tokenizer.encode("hello")
    processors = says(len(prompt), [*made.tokenizer.encode(ANSWER), 1])
    return Composition(
        target=made,
        drafter=lm_of(made, made) if kind == "lm" else drafter_of(kind, "llama"),
        tree=tree_of(tree),
        sampling=sampling_config(processors=processors),
    ).engine(count)


@pytest.mark.parametrize(("kind", "tree"), [("none", "chain"), ("lm", "chain"), ("lm", "dynamic")])
@pytest.mark.parametrize("rejected", [False, True])
def test_pieces_join_to_the_text(says: Any, kind: str, tree: str, rejected: bool) -> None:
    whole = len(speller().tokenizer.encode(ANSWER))
    for count in (1, 5, 6, 7, 8, 14, whole, whole + 1, 99):
        engine = scripted(says, kind, tree, count=count)
        events, result = collect(engine.stream("hello", show_rejected=rejected))
        shown = [event for event in events if event.kind != "rejected"]
        assert "".join(event.text for event in shown) == result.text
        assert result.text == speller().tokenizer.decode(result.tokens)
        if count > whole:
            assert result.text == ANSWER
            assert result.finish_reason == "eos"
            assert result.tokens[-1] == 1
        else:
            assert len(result.tokens) == count
            assert result.finish_reason == "length"
        assert not any("\ufffd" in event.text for event in shown[: len(result.tokens) - 1])
        assert engine.generate("hello") == result


def test_nothing_is_shown_past_an_end_in_mid_block() -> None:
    text = oracle("llama", PROMPT, 16)
    engine = Composition(
        target=target("llama"),
        drafter=drafter_of("perfect", "llama"),
        stop=stop_config(eos=[text[3]]),
    ).engine(16)
    events, result = collect(engine.stream(PROMPT))
    kept = text[: text.index(text[3]) + 1]
    assert [event.token for event in events] == result.tokens == kept
    assert events[-1].kind == "accepted"
    assert result.finish_reason == "eos"


@pytest.mark.parametrize("kind", ["perfect", "noisy", "bad"])
def test_events_say_how_a_token_came(kind: str) -> None:
    engine = Composition(target=target("llama"), drafter=drafter_of(kind, "llama")).engine(21)
    events, result = collect(engine.stream(PROMPT, show_rejected=True))
    assert (events[0].kind, events[0].step) == ("first", 0)
    kinds = [event.kind for event in events]
    if kind == "perfect":
        assert kinds == ["first", *["accepted"] * 4, "bonus"] + (["accepted"] * 4 + ["bonus"]) * 3
    for refused, after in pairwise(events):
        if refused.kind == "rejected":
            assert after.kind == "recovered"
            assert after.token != refused.token
            assert after.step == refused.step
    assert kinds.count("rejected") == kinds.count("recovered")
    assert [event.token for event in events if event.kind != "rejected"] == result.tokens
    plain, _ = collect(engine.stream(PROMPT))
    assert [event for event in events if event.kind != "rejected"] == plain


def test_prompts_of_each_kind() -> None:
    made = speller()
    engine = Composition(target=made).engine(4)
    ids = made.tokenizer.encode("hello")
    assert engine.encode("hello") == engine.encode(ids) == ids
    with pytest.raises(ValueError, match="no chat template"):
        engine.encode([{"role": "user", "content": "hello"}])
    with pytest.raises(ValueError, match="the prompt is empty"):
        engine.generate([])
    with pytest.raises(ValueError, match="the prompt is empty"):
        engine.generate("")
    letters = Composition(target=toy()).engine(4)
    assert letters.encode("a-f") == [0, 5]
    assert letters.encode([{"role": "user", "content": "cab"}]) == [2, 0, 1]
    with pytest.raises(ValueError, match="has no tokenizer; give token ids"):
        Composition(target=target("llama")).engine().encode("hello")


def test_limits_of_one_call() -> None:
    engine = Composition(target=target("llama"), drafter=drafter_of("noisy", "llama")).engine(16)
    assert engine.generate(PROMPT, max_new_tokens=3).tokens == oracle("llama", PROMPT, 3)
    assert engine.generate(PROMPT).tokens == oracle("llama", PROMPT, 16)
    _, result = collect(engine.stream(PROMPT, max_new_tokens=1))
    assert result.tokens == oracle("llama", PROMPT, 1)


@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_a_stream_that_is_left_harms_nobody(cache: str) -> None:
    engine = Composition(
        target=target("llama"),
        drafter=drafter_of("noisy", "llama", cache),
        tree=tree_of("static"),
        cache=CACHE_MAKERS[cache](),
    ).engine(16)
    stream = engine.stream(LONG_PROMPT)
    for _ in range(4):
        next(stream)
    del stream
    assert engine.generate(PROMPT).tokens == oracle("llama", PROMPT, 16)


def test_sequences_differ_and_repeat() -> None:
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("noisy", "llama"),
        sampling=sampling_config(1.0),
    )
    engine = composed.engine(16)
    first = [engine.generate(PROMPT, sequence=i).tokens for i in (0, 1, 2)]
    assert len({tuple(one) for one in first}) == 3
    again = replace(composed, drafter=drafter_of("ngram", "llama"), tree=tree_of("static"))
    engine = again.engine(16)
    assert [engine.generate(PROMPT, sequence=i).tokens for i in (2, 1, 0)] == first[::-1]


@pytest.mark.parametrize("batch", [["a", "b"], [[1, 2], [3]], [1, "a"]])
def test_several_prompts_are_no_prompt(batch: Any) -> None:
    engine = Composition(target=target("llama")).engine()
    with pytest.raises(ConfigError, match="several prompts are a list of such"):
        engine.encode(batch)


@pytest.mark.parametrize("prompt", [None, 5, b"abc"])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigError, match="a prompt is one text"):
        Composition(target=target("llama")).engine().encode(prompt)


def test_a_tensor_of_ids_is_a_prompt() -> None:
    assert Composition(target=target("llama")).engine().encode(torch.tensor([3, 1])) == [3, 1]  # type: ignore[arg-type]


def test_an_answer_that_another_overtook_says_so() -> None:
    engine = Composition(target=target("llama")).engine()
    first = engine.stream([1, 2, 3])
    next(first)
    engine.generate([3, 2, 1])
    with pytest.raises(ConfigError, match="superseded"):
        list(first)


def test_an_engine_says_what_it_is() -> None:
    composed = Composition(
        target=toy(),
        drafter=drafter_of("ngram", "toy"),
        tree=tree_of("static"),
        sampling=sampling_config(0.5),
        seed=3,
    )
    assert repr(composed.engine(8)) == (
        f"Engine(target={toy().name}, drafter=ngram, tree=static, accept=match, cache=dynamic, "
        "runtime=eager, temperature=0.5, seed=3, max_new_tokens=8)"
    )


def test_an_answer_carries_its_numbers() -> None:
    engine = Composition(target=target("llama"), drafter=drafter_of("perfect", "llama")).engine(13)
    answer = engine.generate(PROMPT, log_probs=True)
    assert [(step.num_tokens, step.num_accepted) for step in answer.steps] == [
        (5, 4),
        (5, 4),
        (2, 1),
    ]
    assert (answer.num_steps, answer.num_accepted, answer.acceptance_length) == (3, 9, 4.0)
    assert answer.prefill_s > 0
    assert answer.total_s == answer.prefill_s + answer.decode_s
    assert answer.tokens_per_s == 12 / answer.decode_s
    table = answer.table()
    assert table.columns == ["place", "step", "source", "token", "log_prob"]
    assert [row["token"] for row in table] == answer.tokens
    assert [row["log_prob"] for row in table] == answer.log_probs
    assert [(row["place"], row["step"], row["source"]) for row in table[:7]] == [
        (0, 0, "prefill"),
        *((place, 1, "draft") for place in range(1, 5)),
        (5, 1, "target"),
        (6, 2, "draft"),
    ]
    alone = engine.generate(PROMPT, max_new_tokens=1)
    assert (alone.steps, alone.acceptance_length, alone.log_probs) == ([], None, None)
    assert "log_prob" not in alone.table().columns


def test_a_table_of_rows() -> None:
    table = RowTable([{"a": 1, "b": 0.123456}, {"a": "x|y\n", "c": None}])
    assert table.to_markdown().splitlines() == [
        "| a | b | c |",
        "| --- | --- | --- |",
        "| 1 | 0.1235 |  |",
        "| x\\|y  |  |  |",
    ]
    assert "<td>x|y\n</td>" in table._repr_html_()
    assert len(table) == 2
    assert table[0] == {"a": 1, "b": 0.123456}
    assert repr(RowTable([])) == "no rows"
