"""Where processors ban every token an answer ends, and says why; nothing banned is emitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.accept.typical import Typical
from specframe.measure.meter import Meter
from specframe.session.engine import Engine
from specframe.task.certify.enumeration import exact_law, max_error, sequence_law
from specframe.task.certify.reference import greedy_reference
from specframe.types import How
from tests.small_models import (
    CPU,
    PROMPT,
    Composition,
    drafter_of,
    lm_of,
    sampling_config,
    target,
    toy,
    tree_of,
)
from tests.turns import rest_slow
from tests.user_modules import written

SCRIPT = '''
import torch

class Silent:
    """Bans every token from a length of the text on."""
    length = 0

    def __call__(self, ids, scores):
        full = ids.shape[1] >= self.length
        return torch.full_like(scores, float("-inf")) if full else scores

class Sated:
    """Bans every token after one of the answer, wherever in a tree that is."""
    token = -1

    def __call__(self, ids, scores):
        last = (ids[:, -1:] == self.token) & (ids.shape[1] > 6)
        return scores.masked_fill(last, float("-inf"))
'''
RULES: dict[str, tuple[AcceptRule, How]] = {
    "match": (Match(), "place"),
    "coupled": (Match(), "coupled"),
    "placed": (Rejection(), "place"),
    "wor": (Rejection(), "wor"),
    "iid": (Rejection(), "iid"),
    "typical": (Typical(epsilon=0.3, delta=0.5, temperature=1.0), "place"),
}


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The name of a module with processors that ban everything."""
    return __import__(written(SCRIPT, stem="silent", folder=tmp_path, patch=monkeypatch))


def engine_of(module: Any, kind: str, tree: str, rule: str, temperature: float) -> Engine:
    """Tiny llama under the processor `kind` (Silent, Sated), drafted by a noisy copy."""
    accept, how = RULES[rule]
    return Composition(
        target=target("llama"),
        drafter=drafter_of("none" if tree == "none" else "noisy", "llama"),
        tree=tree_of("chain" if tree == "none" else tree, how if tree != "dynamic" else "place"),
        accept=accept,
        how=how if tree in ("chain", "static") else "place",
        sampling=sampling_config(temperature, processors=[f"{module.__name__}:{kind}"]),
    ).engine(24)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", ["none", "chain", "static", "dynamic"])
def test_an_answer_ends_at_every_place(
    silent: Any, tree: str, temperature: float, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = engine_of(silent, "Silent", "none", "match", temperature)
    silent.Silent.length = 99
    text = whole.generate(PROMPT).tokens
    engine = engine_of(silent, "Silent", tree, "match", temperature)
    for count in (0, 1, 2, 5):
        silent.Silent.length = len(PROMPT) + count
        meter = Meter(CPU)
        meter.begin()
        answer = engine.generate(PROMPT, observers=[meter], log_probs=True)
        assert answer.tokens == text[:count]
        assert answer.finish_reason == "exhausted"
        assert len(answer.log_probs or []) == count
        assert meter.end(first_tokens=min(count, 1)).num_tokens == count
        said = capsys.readouterr().err
        assert said == (
            f"specframe: the answer ends after {count} tokens: sampling.processors ban every token "
            "that could follow; loosen one of them\n"
        )
        events = list(engine.stream(PROMPT))
        assert [event.token for event in events] == text[:count]
        assert "the answer ends" in capsys.readouterr().err
        if count:
            assert engine.components.cache.lengths[0] == len(PROMPT) + count - 1
    silent.Silent.length = 99
    assert engine.generate(PROMPT).tokens == text  # nothing is left of it


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tree", rest_slow(["chain", "dynamic", "static"], fast=2))
def test_nothing_banned_is_emitted_in_a_tree(
    silent: Any, rule: str, tree: str, temperature: float
) -> None:
    plain = engine_of(silent, "Sated", "none", "match", temperature)
    engine = engine_of(silent, "Sated", tree, rule, temperature)
    silent.Sated.token = -1
    last = silent.Sated.token = engine.generate(PROMPT).tokens[4]
    for sequence in (0, 1):
        answer = engine.generate(PROMPT, sequence=sequence)
        assert last not in answer.tokens[:-1]
        ended = answer.tokens[-1:] == [last] and len(answer.tokens) < 24
        assert ended or sequence or rule == "typical"  # which takes another path then
        assert (answer.finish_reason == "exhausted") == ended
        if rule in ("match", "coupled") or (temperature == 0 and rule != "typical"):
            expected = plain.generate(PROMPT, sequence=sequence)
            assert (answer.tokens, answer.finish_reason) == (
                expected.tokens,
                expected.finish_reason,
            )


def test_a_draft_that_is_exhausted_alone_ends_nothing(silent: Any) -> None:
    """A draft of fewer words has none left where its target still has some."""
    silent.Silent.length = 99
    large, small = toy(vocab_size=12), toy(vocab_size=6)
    composed = Composition(
        target=large,
        drafter=lm_of(small, large, trust=True),
        tree=tree_of("chain", "wor"),
        accept=Rejection(),
        how="wor",
        sampling=sampling_config(1.0, bad_words=list("abcdef")),
    )
    answer = composed.engine(12).generate([7, 8])
    assert answer.finish_reason == "length"
    assert all(token >= 6 for token in answer.tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_certify_knows_where_an_answer_ends(silent: Any, temperature: float) -> None:
    """The oracles without a cache end as the engine does, and laws have shorter sequences."""
    silent.Sated.token = 2
    name = f"{silent.__name__}:Sated"
    composed = Composition(
        target=toy(vocab_size=3, spread=1.0),
        drafter=lm_of(toy(vocab_size=3, blend=0.3), toy(vocab_size=3)),
        tree=tree_of("chain", "wor" if temperature else "place"),
        accept=Rejection(),
        how="wor" if temperature else "place",
        sampling=sampling_config(temperature, processors=[name]),
    )
    engine, prompt = composed.engine(3), [0, 1, 0, 1, 0, 1]
    law, _ = sequence_law(engine, prompt, length=3, max_branches=5000)
    exact = exact_law(composed.target, engine.sampling(6), prompt, length=3)  # type: ignore[arg-type]
    assert max_error(law, exact) < 1e-12
    if temperature:
        assert sorted(len(tokens) for tokens in exact) == [1, *[2] * 2, *[3] * 12]
        assert sum(exact.values()) == pytest.approx(1)
    else:
        wanted = greedy_reference(engine, 8)(prompt, 0)
        assert engine.generate(prompt, max_new_tokens=8).tokens == wanted


def test_bad_words_may_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    composed = Composition(target=toy(), sampling=sampling_config(bad_words=list("abcdef")))
    answer = composed.engine(4).generate([1])
    assert (answer.tokens, answer.text, answer.finish_reason) == ([], "", "exhausted")
    assert "sampling.bad_words ban every token" in capsys.readouterr().err
