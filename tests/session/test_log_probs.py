"""Log-probabilities of emitted tokens, against passes over the whole text without any cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specframe.accept.match import Match
from specframe.accept.rejection import Rejection
from specframe.accept.typical import Typical
from specframe.law.sampling import build_sampling
from specframe.session.generation import Generation
from specframe.testing.host_reads import HostReads
from tests.small_models import (
    CPU,
    PROMPT,
    VOCAB,
    Composition,
    drafter_of,
    full_logits,
    raw,
    sampling_config,
    target,
    toy,
    tree_of,
)
from tests.test_syncs import read_in, watch

PROCESSED: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalised": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    "warped": {"top_k": 20, "top_p": 0.9},
    "both": {"repetition_penalty": 1.2, "min_p": 0.01},
}


def oracle_log_probs(
    tokens: Sequence[int], temperature: float, changes: dict[str, Any]
) -> list[float]:
    """Of every token after the prompt, by whole passes and transformers' own processors."""
    text = [*PROMPT, *tokens]
    logits = full_logits(raw("llama"), text)
    sampling = build_sampling(
        sampling_config(temperature, **changes),
        prompt_length=len(PROMPT),
        eos=[],
        encode=None,
        vocabulary=VOCAB,
        device=CPU,
    )
    found = []
    for place in range(len(PROMPT), len(text)):
        ids, scores = torch.tensor([text[:place]]), logits[place - 1][None]
        for processor in sampling.processors:
            scores = processor(ids, scores)
        for warper in sampling.warpers:
            scores = warper(ids, scores)
        found.append(float(scores.double().log_softmax(-1)[0, text[place]]))
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("processed", PROCESSED)
@pytest.mark.parametrize("method", ["none", "chain", "static", "dynamic", "wor", "typical"])
def test_log_probs_are_those_of_the_oracle(method: str, processed: str, temperature: float) -> None:
    changes = PROCESSED[processed]
    if temperature == 0 and processed == "warped":
        changes = {"no_repeat_ngram_size": 2}
    how = "wor" if method == "wor" else "place"
    tree = {"wor": "static", "typical": "dynamic", "none": "chain"}.get(method, method)
    rules = {"wor": Rejection(), "typical": Typical(epsilon=0.3, delta=0.5, temperature=1.0)}
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("none" if method == "none" else "noisy", "llama"),
        tree=tree_of(tree, how),
        accept=rules.get(method, Match()),
        how=how,
        sampling=sampling_config(temperature, **changes),
    )
    engine = composed.engine(14)
    answer = engine.generate(PROMPT, log_probs=True)
    assert answer.log_probs is not None
    assert len(answer.log_probs) == len(answer.tokens) == 14
    expected = oracle_log_probs(answer.tokens, temperature, changes)
    assert answer.log_probs == pytest.approx(expected, abs=1e-4)
    assert min(answer.log_probs) > -torch.inf or method == "typical"
    # They change nothing else, and a stream gives the same.
    silent = engine.generate(PROMPT)
    assert silent.log_probs is None
    assert (silent.tokens, silent.steps) == (answer.tokens, answer.steps)
    stream = engine.stream(PROMPT, log_probs=True)
    while True:
        try:
            next(stream)
        except StopIteration as end:
            streamed: Generation = end.value
            break
    assert streamed == answer


def test_they_end_with_the_answer() -> None:
    """A stop cuts a step; the log-probabilities of what it cut go too."""
    for count in range(1, 8):
        composed = Composition(target=target("llama"), drafter=drafter_of("perfect", "llama"))
        answer = composed.engine(count).generate(PROMPT, log_probs=True)
        assert len(answer.log_probs or []) == count
        assert answer.log_probs == pytest.approx(oracle_log_probs(answer.tokens, 0.0, {}), abs=1e-4)


def test_no_read_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """One `tolist` a step, and nothing is computed for those who did not ask."""
    reads = 0
    tolist = torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> Any:
        nonlocal reads
        reads += 1
        return tolist(tensor)

    composed = Composition(target=toy(), drafter=drafter_of("noisy", "toy"), tree=tree_of("static"))
    engine = composed.engine(12)
    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    counts = []
    for wanted in (False, True):
        reads = 0
        answer = engine.generate([1, 2], log_probs=wanted)
        counts.append(reads)
        assert answer.num_steps > 1
    assert counts[0] == counts[1] == answer.num_steps + 1
    monkeypatch.setattr("specframe.law.target_laws.Laws.log_probs", None)
    engine.generate([1, 2])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("changes", [{}, {"repetition_penalty": 1.3}])
def test_the_one_read_of_a_step_carries_them(
    changes: dict[str, Any], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a function mode and a dispatch mode, with trees and with processors that see the path."""
    composed = Composition(
        target=toy(),
        drafter=drafter_of("ngram", "toy"),
        tree=tree_of("dynamic"),
        sampling=sampling_config(temperature, **changes),
    )
    reads = HostReads()
    watch(reads, composed.target, composed.cache, monkeypatch)
    loop = composed.engine(12).decoding(log_probs=True)
    for seen in read_in(loop, reads, [1, 2, 3, 1, 2, 3]):
        assert len(seen) == 1, seen
    assert len(loop.lane.log_probs or []) == len(loop.context) - 6 > 5
