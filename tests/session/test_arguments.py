"""What a caller of the Python API may give: the ranges of the YAML files, in the same words."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

import specframe
from specframe.errors import ConfigError
from specframe.session.engine import Engine
from specframe.target.toy import Toy
from tests.small_models import LONG_PROMPT, PROMPT, Composition, drafter_of, oracle, target, toy

VERBS = ["generate", "stream", "decoding"]


def engine() -> Engine:
    return Composition(target=target("llama"), drafter=drafter_of("noisy", "llama")).engine(8)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_new_tokens": -5}, r"^max_new_tokens=-5 is out of range; allowed 1 \.\. 1000000$"),
        ({"max_new_tokens": 0}, r"^max_new_tokens=0 is out of range; allowed 1 \.\. 1000000$"),
        ({"max_new_tokens": 1_000_001}, r"^max_new_tokens=1000001 is out of range"),
        ({"max_new_tokens": "5"}, r"^max_new_tokens=5: expected an integer, got '5' \(str\)$"),
        ({"max_new_tokens": 5.0}, r"^max_new_tokens=5.0: expected an integer, got 5.0 \(float\)$"),
        ({"max_new_tokens": True}, r"^max_new_tokens=True: expected an integer"),
        ({"log_probs": 1}, r"^log_probs=1: expected true or false, got 1 \(int\)$"),
        ({"observers": 3}, r"^observers: expected a list, got 3 \(int\)$"),
        ({"observers": [3]}, r"^observers\[0\]: 3 has no method `observe`$"),
        ({"max_tokens": 5}, r"got an unexpected keyword argument 'max_tokens'$"),
    ],
)
def test_arguments_are_bound(verb: str, given: dict[str, Any], sentence: str) -> None:
    prompt = () if verb == "decoding" else (PROMPT,)
    with pytest.raises(ConfigError, match=sentence):
        getattr(engine(), verb)(*prompt, **given)


@pytest.mark.parametrize("verb", ["generate", "stream"])
def test_arguments_of_answers(verb: str) -> None:
    for value, sentence in ((-1, "out of range"), (None, "expected an integer"), ("a", "integer")):
        with pytest.raises(ConfigError, match=rf"^sequence={value}.*{sentence}"):
            getattr(engine(), verb)(PROMPT, sequence=value)
    with pytest.raises(ConfigError, match="missing a required argument: 'prompt'"):
        getattr(engine(), verb)()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["target=toy", "max_new_tokens=0"], r"max_new_tokens=0 is out of range"),
        ([5], r"words are texts, such as \['drafter=ngram'\]; 5 is none"),
        (5, r"give a list of words, such as \[.drafter=ngram.\]"),
        (None, r"give a list of words, such as \[.drafter=ngram.\]"),
        ("drafter=ngram", r"give a list of words, such as \[.drafter=ngram.\]"),
    ],
)
def test_words_of_load(words: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        specframe.load(words)


def test_settings_are_bound() -> None:
    for key, value in (("max_new_tokens", -1), ("seed", -1), ("seed", "a"), ("raw", 1)):
        composed = Composition(target=target("llama")).engine().settings
        with pytest.raises(ConfigError, match=f"^{key}={value}"):
            type(composed)(**{**vars(composed), key: value})


@pytest.mark.parametrize("ids", [[1, True], [1.5, 2], [1, None]])
def test_ids_are_integers(ids: Any) -> None:
    with pytest.raises(ConfigError, match="a prompt is one text"):
        engine().encode(ids)


def test_three_threads_on_one_engine() -> None:
    shared = engine()
    prompts = [PROMPT, LONG_PROMPT, (7, 7, 9)]
    expected = [oracle("llama", prompt, 8) for prompt in prompts]
    wrong: list[Any] = []

    def ask(place: int) -> None:
        for _ in range(3):
            answer = shared.generate(prompts[place]).tokens
            if answer != expected[place]:
                wrong.append((place, answer))

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_stream_between_answers_of_threads_is_whole_or_refused() -> None:
    shared = engine()
    expected = [oracle("llama", prompt, 8) for prompt in (PROMPT, LONG_PROMPT)]
    texts: list[list[int]] = []
    refusals: list[str] = []

    def stream() -> None:
        for _ in range(3):
            try:
                texts.append([event.token for event in shared.stream(PROMPT)])
            except ConfigError as error:
                refusals.append(str(error))

    thread = threading.Thread(target=stream)
    thread.start()
    answers = [shared.generate(LONG_PROMPT).tokens for _ in range(3)]
    thread.join()
    assert all(answer == expected[1] for answer in answers)
    assert all(text == expected[0] for text in texts)
    assert all("superseded" in refusal for refusal in refusals)
    assert len(texts) + len(refusals) == 3


def test_engines_of_one_model_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's kernel and graphs keep buffers between passes, whichever engine runs them."""
    shared, at_once, most = toy(), 0, 0
    forward = Toy.forward

    def watched(self: Toy, *args: Any, **kwargs: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(1e-3)
        try:
            return forward(self, *args, **kwargs)
        finally:
            at_once -= 1

    monkeypatch.setattr(Toy, "forward", watched)
    engines = [Composition(target=shared).engine(8) for _ in range(3)]
    threads = [threading.Thread(target=each.generate, args=([1, 2],)) for each in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"sampling": {"temperature": -1.0}}, r"^sampling\.temperature=-1\.0 is out of range"),
        (
            {"sampling": {"temperature": float("nan")}},
            r"^sampling\.temperature=nan is out of range",
        ),
        ({"sampling": {"temperature": "hot"}}, r"^sampling\.temperature=hot: expected a number"),
        ({"sampling": {"top_k": 0}}, r"^sampling\.top_k=0 is out of range"),
        ({"sampling": {"top_p": 1.5}}, r"^sampling\.top_p=1\.5 is out of range"),
        ({"sampling": {"top_k": 2.0}}, r"^sampling\.top_k=2\.0: expected an integer"),
    ],
)
def test_configs_made_by_hand_are_bound(given: dict[str, Any], sentence: str) -> None:
    made = engine().settings
    with pytest.raises(ConfigError, match=sentence):
        replace(made, sampling=replace(made.sampling, **given["sampling"]))
    assert replace(made, sampling=replace(made.sampling, temperature=1)).sampling.temperature == 1
