"""drafter=lm: vocabularies, catching up, going back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specframe.errors import IncompatibleComponents
from specframe.models.tokenizer import HFTokenizer
from specframe.target.hf import HF
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    RUNTIME,
    VOCAB,
    Composition,
    assert_fresh,
    decode,
    draft,
    drafter_of,
    lm_of,
    model,
    oracle,
    raw,
    sampling_config,
    target,
    tree_of,
)


class Words:
    """As much of a tokenizer of transformers as a table of ids."""

    chat_template = eos_token_id = None

    def __init__(self, order: list[int]) -> None:
        self._order = order

    def get_vocab(self) -> dict[str, int]:
        return {f"w{word}": place for place, word in enumerate(self._order)}


def sized(size: int, order: list[int] | None = None) -> HF:
    made = HF.of(model("llama", seed=4, vocab_size=size), runtime=RUNTIME)
    made.tokenizer = None if order is None else HFTokenizer(Words(order))
    return made


def test_tables_of_another_size_need_the_same_tokenizer() -> None:
    same = list(range(80))
    lm_of(sized(100, same), sized(VOCAB, same))
    lm_of(sized(90, same), sized(VOCAB, same))
    with pytest.raises(IncompatibleComponents, match=r"another vocabulary than target=Llama"):
        lm_of(sized(100), sized(VOCAB))


def test_permuted_tables_are_refused_unless_trusted() -> None:
    order = list(range(80))
    permuted = [*order[1:], order[0]]
    with pytest.raises(IncompatibleComponents, match=r"drafter\.trust_vocabulary=true"):
        lm_of(sized(VOCAB, permuted), sized(VOCAB, order))
    lm_of(sized(VOCAB, permuted), sized(VOCAB, order), trust=True)


@pytest.mark.parametrize("size", [90, 100])
@pytest.mark.parametrize("how", ["place", "wor", "coupled"])
def test_ids_that_one_side_lacks_are_never_drafted(size: int, how: Any) -> None:
    """A draft that is right wherever it can be, so that the map is seen to be right too."""
    made = model("llama", vocab_size=size)
    with torch.no_grad():
        common = min(size, VOCAB)
        for (name, ours), theirs in zip(
            made.named_parameters(), raw("llama").parameters(), strict=True
        ):
            if "embed" in name or "lm_head" in name:
                ours[:common] = theirs[:common]
            else:
                ours.copy_(theirs)
    for prompt, processors in (
        ((95, 96, 3, 17), {}),  # ids that the smaller table lacks, in the prompt
        (LONG_PROMPT[:8], {}),
        (LONG_PROMPT[:8], {"repetition_penalty": 1.3}),
    ):
        plain = Composition(
            target=target("llama"),
            sampling=sampling_config(0.0 if how == "place" else 1.0, **processors),
        )
        expected = decode(plain, prompt, 24).tokens
        composed = Composition(
            target=target("llama"),
            drafter=lm_of(HF.of(made, runtime=RUNTIME), target("llama"), trust=True),
            tree=tree_of("static", how),
            how=how,
            sampling=plain.sampling,
        )
        outcome = decode(composed, prompt, 24)
        assert outcome.tokens == expected
        assert prompt[0] == 95 or outcome.num_accepted >= 6
        for record in outcome.records:
            assert all(token < common for token in record.draft.tokens[1:].tolist())


@pytest.mark.parametrize("tree", ["chain", "static", "dynamic"])
def test_one_draft_forward_per_expanded_level(tree: str) -> None:
    drafter = drafter_of("perfect", "llama")
    calls: list[int] = []
    inner = drafter.model.forward

    def counted(rows: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(rows.positions.shape[0])
        return inner(rows, *args, **kwargs)

    drafter.model.forward = counted
    try:
        composed = Composition(target=target("llama"), drafter=drafter, tree=tree_of(tree))
        loop = composed.decoding(30)
        loop.begin(LONG_PROMPT)
        assert calls == [], "a network runs in expand only"
        loop.step()
        assert calls[0] == len(LONG_PROMPT) + 1
        assert len(calls) == 4
        calls.clear()
        loop.step()
        # After a full acceptance the last node and the bonus token are fed together.
        assert calls[0] == 2
        assert len(calls) == 4
    finally:
        del drafter.model.forward


@pytest.mark.parametrize("cache", CACHE_MAKERS)
def test_goes_back_with_the_context(cache: str) -> None:
    composed = Composition(
        target=target("llama"), drafter=drafter_of("perfect", "llama", cache), tree=tree_of("chain")
    )
    loop = composed.decoding(30)
    loop.begin(PROMPT)
    for _ in range(3):
        loop.step()
    held = composed.drafter._cache
    for length in (len(PROMPT) + 6, len(PROMPT) + 2, len(PROMPT) + 1):
        loop.truncate(length)
        assert held.lengths[0] <= length - 1
        assert composed.cache.lengths[0] == length - 1
        assert loop.step().num_accepted == 4
        assert_fresh(held, draft("llama", "perfect").model, loop.context.tokens)
    assert loop.context.tokens[len(PROMPT) :] == oracle("llama", PROMPT, 6)


def test_draft_may_be_the_target_itself() -> None:
    made = target("gemma3")
    composed = Composition(target=made, drafter=lm_of(made, made))
    outcome = decode(composed, LONG_PROMPT, 21)
    assert outcome.tokens == oracle("gemma3", LONG_PROMPT, 21)
    assert [record.num_accepted for record in outcome.records] == [4] * 4
