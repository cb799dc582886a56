"""The suite of tests for drafters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, ClassVar

import pytest
import torch

from specframe.cache.base import CACHES
from specframe.compose.build import load
from specframe.drafter.base import DRAFTERS
from specframe.errors import IncompatibleComponents
from specframe.records import Context
from specframe.session.engine import Engine
from specframe.testing.defaults import NEW_TOKENS, PROMPTS, ComponentContract, costs_words
from specframe.tree.base import TREES
from specframe.types import Needs, TargetOutput

TAPS = re.compile(r"embed|resid:\d+|final_prenorm|final_postnorm")


@cache
def _baseline(words: tuple[str, ...], prompt: tuple[int, ...]) -> tuple[int, ...]:
    engine = load(["target=toy", "drafter=none", "tree=chain", *words])
    return tuple(engine.generate(prompt, max_new_tokens=NEW_TOKENS).tokens)


def compositions(*fixed: str, shift: int = 0) -> Iterator[tuple[list[str], Engine]]:
    """Engines on target=toy with every tree that goes with `fixed`, and a cache in turn: `shift`
    by one gives each tree the next."""
    caches = CACHES.names()
    for turn, tree in enumerate(TREES.names(), shift):
        cache = caches[turn % len(caches)]
        words = [*fixed, f"tree={tree}", *costs_words(tree), f"cache={cache}"]
        try:
            yield words, load(["target=toy", *words])
        except IncompatibleComponents as error:
            if "use " not in str(error):
                raise AssertionError(f"{words}: the refusal names no way out") from error


def continuations(word: str, tokens: Sequence[int], **values: Any) -> list[list[int]]:
    """What a retrieval drafter with these values proposes after a text of these tokens."""
    drafter: Any = DRAFTERS.get(word)(**values)
    logits = torch.zeros(1, max(tokens) + 1)
    drafter.begin(Context.of(tokens, torch.device("cpu")), TargetOutput(logits=logits))
    return [list(proposed.tokens) for proposed in drafter.continuations()]


class DrafterContract(ComponentContract):
    """What every drafter does: whatever it proposes, the text is the target's own.

    words: more words that the drafter needs on target=toy, beside its keys in `values`; a suite
    over several drafters overrides the fixture `extra` instead.
    """

    words: ClassVar[tuple[str, ...]] = ()

    @pytest.fixture
    def extra(self) -> tuple[str, ...]:
        """More words that the drafter needs."""
        return (*type(self).words, *self.keys("drafter"))

    @pytest.mark.parametrize(("shift", "temperature"), [(0, 0.0), (1, 0.9)])
    def test_text_is_that_of_no_draft(
        self, name: str, extra: tuple[str, ...], shift: int, temperature: float
    ) -> None:
        settings = (f"sampling.temperature={temperature}", "seed=7")
        expected = _baseline(settings, PROMPTS[0])
        ran = 0
        for words, engine in compositions(f"drafter={name}", *extra, *settings, shift=shift):
            answer = engine.generate(PROMPTS[0], max_new_tokens=NEW_TOKENS)
            assert tuple(answer.tokens) == expected, words
            ran += 1
        assert ran, "no tree takes this drafter"

    def test_a_prompt_leaves_nothing_to_the_next(self, name: str, extra: tuple[str, ...]) -> None:
        engine = load(["target=toy", f"drafter={name}", *extra])
        runs = [self.steps(engine, prompt) for prompt in (*PROMPTS, PROMPTS[0])]
        assert runs[0] == runs[2]
        fresh = load(["target=toy", f"drafter={name}", *extra])
        assert runs[1] == self.steps(fresh, PROMPTS[1])

    def steps(self, engine: Engine, prompt: Sequence[int]) -> list[list[int]]:
        """Emitted tokens by step."""
        loop = engine.decoding(max_new_tokens=NEW_TOKENS)
        return [emission.tokens for emission in loop.run(prompt)]

    @pytest.mark.parametrize("tail", [(), (2, 5, 1)])
    def test_truncate(self, name: str, extra: tuple[str, ...], tail: tuple[int, ...]) -> None:
        """Going back leaves what a run over that prefix would have, with or without a tail."""
        engine = load(["target=toy", f"drafter={name}", *extra])
        loop = engine.decoding(max_new_tokens=NEW_TOKENS)
        emissions = loop.run(PROMPTS[1])
        for _ in range(4):  # the token of the prompt's pass, and three steps
            next(emissions)
        length = len(PROMPTS[1]) + 2
        prefix = [*loop.context.tokens[:length], *tail]
        loop.truncate(length, tail)
        for _ in emissions:
            pass
        expected = load(["target=toy", "drafter=none"]).generate(
            prefix, max_new_tokens=len(PROMPTS[1]) + NEW_TOKENS - len(prefix)
        )
        assert loop.context.tokens == [*prefix, *expected.tokens]

    def test_needs_are_declared(self, name: str) -> None:
        needs = DRAFTERS.get(name).traits.needs
        assert isinstance(needs, Needs)
        assert needs.aux_rows >= 0
        assert all(TAPS.fullmatch(tap) for tap in needs.taps)

    def test_datasheet(self, name: str) -> None:
        text = inspect.getdoc(DRAFTERS.get(name)) or ""
        for field in ("ossless", "[Nn]eeds|[Ff]orward", "Paper|Source|arXiv|[Bb]aseline"):
            assert re.search(field, text), f"the data sheet lacks {field}"
