"""What drafters that run some of the target's own layers do: the drafts of a slow reference, no key
that is stale or written twice, nothing left from prompt to prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from specframe import load
from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.drafter.base import Drafter
from specframe.errors import IncompatibleComponents
from tests.drafter.slow_layers import (
    TREES,
    Case,
    Logits,
    Slow,
    cases,
    composed,
    ends_on_a_leaf,
    full_cases,
    shape,
)
from tests.small_models import (
    CACHE_MAKERS,
    LONG_PROMPT,
    PROMPT,
    Composition,
    assert_fresh,
    decode,
    oracle,
    raw,
    sampling_config,
    target,
)
from tests.turns import in_turn

COUNT = 16
CASES = in_turn([(case,) for case in cases()], CACHE_MAKERS, every=2)


@dataclass(frozen=True, kw_only=True)
class Method:
    """What the suite asks of one of them; each function takes the target's family."""

    word: str
    drafter: Callable[[str], Drafter]
    reference: Callable[[str], Logits]  # what the drafter says, by whole passes
    perfect: Callable[[str], Drafter]  # one that leaves nothing out
    busy: Callable[[str], Drafter]  # one that does whatever else it can between drafts
    # (proposal, temperature) -> whether some draft must be right there.
    is_right: Callable[[str, float], bool] = lambda how, temperature: False


class PartialLayersContract:
    """Drafts with layers of the target."""

    @pytest.fixture
    def method(self) -> Method:
        """What is tested; each suite says."""
        raise NotImplementedError

    @pytest.mark.parametrize(("case", "cache_word"), CASES)
    def test_drafts_and_text_are_those_of_a_slow_reference(
        self, method: Method, case: Case, cache_word: str
    ) -> None:
        """A stale key, a wrong mask or a wrong slot changes a draft, if not the text."""
        family, tree, rule, how, temperature = case
        sampling = sampling_config(temperature)
        given = {"accept": rule, "sampling": sampling, "family": family, "seed": 5}
        slow = Slow(method.reference(family))
        expected = decode(composed(tree, how, drafter=slow, **given), LONG_PROMPT, COUNT)
        assert expected.num_accepted or not method.is_right(how, temperature)
        cache = CACHE_MAKERS[cache_word]()
        fast = composed(tree, how, drafter=method.drafter(family), cache=cache, **given)
        outcome = decode(fast, LONG_PROMPT, COUNT)
        assert shape(outcome) == shape(expected)
        assert_fresh(cache, raw(family), outcome.loop.context.tokens)
        if temperature == 0:
            assert expected.tokens == oracle(family, LONG_PROMPT, COUNT)
        elif isinstance(rule, Match):
            plain = Composition(target=target(family), sampling=sampling, seed=5)
            assert expected.tokens == decode(plain, LONG_PROMPT, COUNT).tokens

    @pytest.mark.parametrize(("family", "tree", "rule", "how", "temperature"), full_cases())
    def test_all_layers_are_a_perfect_drafter(
        self, method: Method, family: str, tree: str, rule: AcceptRule, how: Any, temperature: float
    ) -> None:
        drafter, sampling = method.perfect(family), sampling_config(temperature)
        given = {"accept": rule, "sampling": sampling, "family": family}
        outcome = decode(composed(tree, how, drafter=drafter, **given), count=COUNT)
        assert outcome.num_accepted >= 8
        assert all(ends_on_a_leaf(record) for record in outcome.records[:-1])
        if isinstance(rule, Match):
            plain = Composition(target=target(family), sampling=sampling)
            assert outcome.tokens == decode(plain, count=COUNT).tokens

    @pytest.mark.parametrize("tree", TREES)
    def test_prompts_leave_nothing_to_each_other(self, method: Method, tree: str) -> None:
        made = composed(tree, drafter=method.drafter("llama"))
        for prompt in ((9,), LONG_PROMPT, PROMPT, (9,)):
            fresh = decode(composed(tree, drafter=method.drafter("llama")), prompt, COUNT)
            again = decode(made, prompt, COUNT)
            assert shape(again) == shape(fresh)
            assert again.tokens == oracle("llama", prompt, COUNT)

    @pytest.mark.parametrize("tail", [(), (4, 88, 17)])
    @pytest.mark.parametrize("tree", TREES)
    def test_goes_back_with_the_context(
        self, method: Method, tree: str, tail: tuple[int, ...]
    ) -> None:
        cache = CACHE_MAKERS["dynamic"]()
        loop = composed(tree, drafter=method.busy("llama"), cache=cache).decoding(30)
        loop.begin(PROMPT)
        for _ in range(5):
            loop.step()
        kept = len(PROMPT) + 3
        prefix = [*loop.context.tokens[:kept], *tail]
        loop.truncate(kept, tail)
        while loop.finish_reason is None:
            loop.step()
        rest = len(PROMPT) + 30 - len(prefix)
        assert loop.context.tokens[len(prefix) :] == oracle("llama", tuple(prefix), rest)
        assert_fresh(cache, raw("llama"), loop.context.tokens)

    def test_a_target_without_partial_layers_is_refused(self, method: Method) -> None:
        with pytest.raises(IncompatibleComponents) as caught:
            load(["target=toy", f"drafter={method.word}"])
        assert str(caught.value) == (
            f"drafter={method.word} needs partial layers, which target=toy does not give; use "
            "target=hf or target=smollm2"
        )
