"""Where a text ends: at the same token as in transformers' own loop, wherever a block ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specframe.records import Context
from specframe.session.stopping import build_stopping
from tests.small_models import (
    CACHE_MAKERS,
    CPU,
    PROMPT,
    Composition,
    byte_tokenizer,
    decode,
    drafter_of,
    lm_of,
    oracle,
    speller,
    stop_config,
    target,
    tree_of,
)

RULES = '''
class TenTokens:
    """Ends a text of ten tokens, the prompt's included."""

    def __call__(self, ids, scores, **kwargs):
        import torch
        return torch.full((ids.shape[0],), ids.shape[1] >= 10)
'''


def codes(config: Any, context: list[int], tokens: list[int], room: int = 99) -> list[str | None]:
    """The reason to end after each token of a verdict."""
    stopping = build_stopping(config, eos=(7,), tokenizer=byte_tokenizer())
    found = stopping.codes(Context.of(context, CPU), torch.tensor(tokens), room)
    assert found.shape == (len(tokens),)
    return [stopping.reason(int(code)) for code in found]


def test_every_token_of_a_verdict_is_judged() -> None:
    assert codes(stop_config(), [1, 7], [3, 7, 3, 7]) == [None, "eos", None, "eos"]
    assert codes(stop_config(eos=[3, 5]), [1], [5, 7, 3, -1]) == ["eos", None, "eos", None]
    assert codes(stop_config(eos=[]), [1], [5, 7, 3]) == [None, None, None]
    assert codes(stop_config(eos=[]), [1], [5, 7, 3], room=2) == [None, "length", None]
    assert codes(stop_config(), [1], [5, 7, 3], room=2) == [None, "eos", None]


@pytest.mark.parametrize("prefix", ["", "x", "some longer words before the answer "])
def test_stop_strings_are_judged_like_token_by_token(prefix: str) -> None:
    from transformers import StopStringCriteria

    tokenizer = byte_tokenizer()
    strings = ["abc", "bd", "e f"]
    judge = StopStringCriteria(tokenizer, strings)
    for text in ("zabcz", "bdbd", "e fab", "abd", "bc", "zz"):
        context = tokenizer(f"<s>{prefix}a").input_ids
        tokens = tokenizer(text).input_ids
        expected = [
            "stop" if judge(torch.tensor([context + tokens[: place + 1]]), None)[0] else None
            for place in range(len(tokens))
        ]
        assert codes(stop_config(eos=[], strings=strings), context, tokens) == expected
    context = tokenizer("<s>za").input_ids
    tokens = tokenizer("bcz").input_ids  # begun before this verdict
    expected = [None, "stop", None]
    assert codes(stop_config(eos=[], strings=strings), context, tokens) == expected


def test_user_criteria_see_whole_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"ends_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(RULES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = stop_config(criteria=[f"{name}:TenTokens"])
    assert codes(config, [1] * 8, [2, 2, 7]) == [None, "stop", "eos"]
    for kind in ("none", "perfect", "ngram"):
        composed = Composition(
            target=target("llama"), drafter=drafter_of(kind, "llama"), stop=config
        )
        outcome = decode(composed)
        assert outcome.tokens == oracle("llama", PROMPT, 4)
        assert outcome.loop.finish_reason == "stop"
    with pytest.raises(ValueError, match=r"stop\.criteria=nowhere:It: cannot import it"):
        build_stopping(stop_config(criteria=["nowhere:It"]), eos=(), tokenizer=None)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"stop\.strings needs a target with a tokenizer"):
        Composition(target=target("llama"), stop=stop_config(strings=["a"])).engine()


@pytest.mark.parametrize("cache", CACHE_MAKERS)
@pytest.mark.parametrize("kind", ["none", "lm", "ngram"])
def test_stop_strings_end_the_text_where_generate_ends_it(kind: str, cache: str) -> None:
    made = speller()
    prompt = made.tokenizer.encode("hello world")
    text = Composition(target=made).engine(40).generate(prompt).text
    assert len(text) == 40
    # Blocks are five tokens long here, so these strings begin and end in all places of a block.
    for start, length in ((0, 1), (1, 2), (3, 3), (4, 2), (4, 4), (5, 3), (9, 7), (20, 5)):
        strings = ["QQ", text[start : start + length]]
        own = made.model.generate(
            torch.tensor([prompt]),
            max_new_tokens=40,
            do_sample=False,
            stop_strings=strings,
            tokenizer=made.tokenizer.tokenizer,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        composed = Composition(
            target=made,
            drafter=lm_of(made, made, cache) if kind == "lm" else drafter_of(kind, "llama"),
            cache=CACHE_MAKERS[cache](),
            stop=stop_config(strings=strings),
        )
        outcome = decode(composed, prompt, 40)
        assert outcome.tokens == own
        assert outcome.loop.finish_reason == "stop"
        assert composed.cache.lengths[0] == len(prompt) + len(own) - 1
        assert made.tokenizer.decode(own).endswith(strings[1])
        # Nothing is counted past the stop.
        last = outcome.records[-1] if outcome.records else None
        assert last is None or last.num_accepted <= len(last.tokens)
        assert len(own) == 1 + sum(len(record.tokens) for record in outcome.records)


def test_drafts_that_were_cut_count_as_accepted() -> None:
    """A drafted token that ends the text is an accepted one, and no bonus token follows it."""
    text = oracle("llama", PROMPT, 16)
    place = next(i for i in (2, 3, 4) if text.index(text[i]) == i)
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("perfect", "llama"),
        stop=stop_config(eos=[text[place]]),
    )
    record = decode(composed).records[-1]
    assert record.was_cut
    assert record.tokens == text[1 : place + 1]
    assert record.num_accepted == place
    assert len(record.path) == place - 1


def test_end_token_in_the_prompt_does_not_end_the_text() -> None:
    text = oracle("llama", PROMPT, 12)
    unused = next(token for token in PROMPT if token not in text)
    composed = Composition(
        target=target("llama"),
        drafter=drafter_of("ngram", "llama"),
        tree=tree_of("native"),
        stop=stop_config(eos=[unused]),
    )
    assert decode(composed, PROMPT, 12).tokens == text
