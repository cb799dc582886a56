"""The real model, in float32: greedy text of every drafter, tree and cache is generate's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch

from specframe.drafter.base import Drafter
from specframe.drafter.lookahead import Lookahead
from specframe.drafter.none import NoDraft
from specframe.drafter.ouroboros import Ouroboros
from specframe.drafter.recycling import Recycling
from specframe.drafter.rest import Rest
from specframe.drafter.suffix import Suffix
from specframe.prompts.reader import BUILTIN, read_prompts
from specframe.target.hf import HF
from specframe.tree.base import TreePolicy
from specframe.tree.chain import ChainTree
from specframe.tree.dynamic import DynamicTree
from tests.small_models import (
    CACHE_MAKERS,
    CPU,
    RUNTIME,
    Composition,
    decode,
    drafter_of,
    lm_of,
    sampling_config,
    stop_config,
    tree_of,
)
from tests.turns import in_turn, rest_slow

PROMPTS = ("Count: one two three one two three", "The capital of France is")
PAIRS = [
    ("none", "chain"),
    *(("ngram", tree) for tree in ("chain", "static", "dynamic", "native")),
    *(("lm", tree) for tree in ("chain", "static", "dynamic")),
    ("lookahead", "native"),
    ("ouroboros", "native"),
    ("recycling", "static"),
]


@pytest.fixture(scope="session")
def smollm2() -> HF:
    return HF(
        path="package://smollm2",
        dtype="auto",
        device_map=None,
        revision=None,
        attn_implementation="sdpa",
        quantization=None,
        trust_remote_code=False,
        draft=None,
        device=CPU,
        runtime=RUNTIME,
    )


@pytest.fixture(scope="session")
def shallow(smollm2: HF) -> HF:
    """A draft of the same family: the embeddings, four blocks and the head of SmolLM2."""
    import copy

    import transformers

    settings = copy.deepcopy(smollm2.model.config)
    settings.num_hidden_layers = 4
    if getattr(settings, "layer_types", None):
        settings.layer_types = settings.layer_types[:4]
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(settings)
    weights = smollm2.model.state_dict()
    kept = {key: weights[key] for key in made.state_dict()}
    made.load_state_dict(kept, assign=True)
    made.model.rotary_emb = copy.deepcopy(smollm2.model.model.rotary_emb)
    small = HF.of(made, runtime=RUNTIME)
    small.tokenizer = smollm2.tokenizer
    return small


class Own:
    """What transformers' generate answers, made once for each question."""

    def __init__(self, made: HF) -> None:
        self._made = made
        self.greedy = lru_cache(self._greedy)

    def _greedy(self, prompt: tuple[int, ...], count: int, **more: Any) -> list[int]:
        ids = torch.tensor([prompt])
        out = self._made.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            **more,
        )
        return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def own(smollm2: HF) -> Own:
    return Own(smollm2)


def chat(made: HF, text: str) -> tuple[int, ...]:
    assert made.tokenizer is not None
    return tuple(made.tokenizer.encode_chat([{"role": "user", "content": text}]))


def drafter(kind: str, small: HF, large: HF, cache: str) -> Drafter:
    if kind == "lookahead":
        return Lookahead(window=3, ngram=3, guesses=3, pool_from_prompt=True)
    if kind == "ouroboros":
        return Ouroboros(
            model=large,
            target=large,
            new_cache=CACHE_MAKERS[cache],
            layers=20,
            trust_vocabulary=False,
            draft_tokens=3,
            window=2,
            ngram=3,
            phrases=2,
            keep_pool=True,
        )
    if kind == "recycling":
        return Recycling(width=8, from_prompt=True, keep=False, target=large)
    return lm_of(small, large, cache) if kind == "lm" else drafter_of(kind, "none")


def tree(kind: str) -> TreePolicy:
    if kind == "dynamic":
        return DynamicTree(depth=3, top_k=2, max_nodes=6, proposal="place")
    return tree_of(kind)


WAYS = [*zip(PROMPTS, CACHE_MAKERS, strict=True)]


@pytest.mark.parametrize(("kind", "shape", "way"), in_turn(PAIRS, WAYS, every=4))
def test_sixteen_tokens(
    smollm2: HF, shallow: HF, own: Own, kind: str, shape: str, way: tuple[str, str]
) -> None:
    """Some pairs with one prompt and its cache; all of them with both in the slow suite."""
    text, cache = way
    prompt = tuple(smollm2.tokenizer.encode(text))
    composed = Composition(
        target=smollm2,
        drafter=drafter(kind, shallow, smollm2, cache),
        tree=tree(shape),
        cache=CACHE_MAKERS[cache](),
    )
    assert decode(composed, prompt, 16).tokens == own.greedy(prompt, 16)


@pytest.mark.parametrize("word", rest_slow(["suffix", "rest"]))
def test_what_is_looked_up_changes_no_text(smollm2: HF, own: Own, word: str) -> None:
    if word == "rest":
        sizes = {"max_match": 16, "min_match": 1, "length": 10, "max_nodes": 16}
        made: Drafter = Rest(corpus="builtin", **sizes, target=smollm2)
    else:
        made = Suffix(
            max_match=64,
            alpha=4.0,
            max_tokens=16,
            min_probability=0.1,
            corpus="builtin",
            keep_outputs=2,
            target=smollm2,
        )
    accepted = 0
    for text in PROMPTS:
        prompt = tuple(smollm2.tokenizer.encode(text))
        composed = Composition(target=smollm2, drafter=made, tree=tree_of("native"))
        outcome = decode(composed, prompt, 16)
        assert outcome.tokens == own.greedy(prompt, 16)
        accepted += outcome.num_accepted
    assert accepted > 0


def two_of_each_category() -> list[str]:
    records = read_prompts(BUILTIN)
    categories = dict.fromkeys(record.category for record in records)
    return [
        record.turns[0]
        for category in categories
        for record in [one for one in records if one.category == category][:2]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(12))
def test_twelve_prompts_of_sixty_four_tokens(smollm2: HF, shallow: HF, own: Own, turn: int) -> None:
    """Each prompt with two compositions, so that every composition is asked at length."""
    chosen = two_of_each_category()
    assert len(chosen) == 12
    ways = [*itertools.product(PAIRS, CACHE_MAKERS)]
    prompt = chat(smollm2, chosen[turn])
    for (kind, shape), cache in ways[turn::12]:
        composed = Composition(
            target=smollm2,
            drafter=drafter(kind, shallow, smollm2, cache),
            tree=tree(shape),
            cache=CACHE_MAKERS[cache](),
        )
        assert decode(composed, prompt, 64).tokens == own.greedy(prompt, 64), chosen[turn]


def test_perfect_draft_is_accepted_in_full(smollm2: HF) -> None:
    composed = Composition(
        target=smollm2,
        drafter=lm_of(smollm2, smollm2),
        tree=ChainTree(depth=3, max_nodes=4, proposal="place"),
    )
    records = decode(composed, smollm2.tokenizer.encode(PROMPTS[1]), 9).records
    assert [record.num_accepted for record in records] == [3, 3]


def test_penalties_and_stop_strings_as_in_generate(smollm2: HF, own: Own) -> None:
    prompt = tuple(smollm2.tokenizer.encode(PROMPTS[0]))
    text = smollm2.tokenizer.decode(own.greedy(prompt, 16))
    strings = (text[8:13],)  # some letters of one or two words
    expected = own._greedy(
        prompt, 16, stop_strings=list(strings), tokenizer=smollm2.tokenizer.tokenizer
    )
    composed = Composition(
        target=smollm2,
        drafter=drafter_of("ngram", "none"),
        stop=stop_config(strings=list(strings)),
    )
    outcome = decode(composed, prompt, 16)
    assert outcome.tokens == expected
    assert outcome.loop.finish_reason == "stop"
    changes = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    composed = Composition(
        target=smollm2,
        drafter=drafter_of("ngram", "none"),
        tree=tree_of("static"),
        sampling=sampling_config(**changes),
    )
    assert decode(composed, prompt, 10).tokens == own._greedy(prompt, 10, **changes)


def emoji_answers(made: HF, texts: Sequence[str]) -> list[tuple[list[str], str, str]]:
    found = []
    for text in texts:
        ids = made.tokenizer.encode_plain(text)
        step = made.tokenizer.decoder()
        pieces = [step(token) for token in ids]
        found.append((pieces, "".join(pieces), made.tokenizer.decode(ids)))
    return found


def test_its_tokenizer_streams_emoji(smollm2: HF) -> None:
    texts = ("\U0001f600", "a \U0001f44d\U0001f3fd b", "naïve — 日本語\n", "  two")
    for text, (pieces, joined, whole) in zip(texts, emoji_answers(smollm2, texts), strict=True):
        assert joined == whole == text
        assert not any("\ufffd" in piece for piece in pieces)
    assert any("" in pieces for pieces, _, _ in emoji_answers(smollm2, texts))


def test_sampled_text_does_not_depend_on_the_draft(smollm2: HF, shallow: HF) -> None:
    prompt = smollm2.tokenizer.encode(PROMPTS[1])
    settings = sampling_config(1.0, top_p=0.9)
    plain = Composition(target=smollm2, drafter=NoDraft(), sampling=settings)
    expected = decode(plain, prompt, 10).tokens
    composed = Composition(
        target=smollm2,
        drafter=lm_of(shallow, smollm2),
        tree=tree_of("static", "coupled"),
        how="coupled",
        sampling=settings,
    )
    assert decode(composed, prompt, 10).tokens == expected
