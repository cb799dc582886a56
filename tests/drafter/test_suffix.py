"""The suffix drafter: the tree of the paper's rule, what it may remember, and acceptance."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe import load
from specframe.drafter.suffix import Suffix
from specframe.records import Context
from specframe.testing.defaults import component
from specframe.testing.draft_checks import builder, paths
from specframe.types import Budget, TargetOutput
from tests.lookup.test_suffix_automaton import TOKENS, ends, texts
from tests.small_models import TINY, Composition, decode, oracle, target, toy, tree_of

NOTHING = TargetOutput(logits=torch.zeros(1, 1))
NUMBERS = {
    "max_match": 16,
    "alpha": 1.0,
    "max_tokens": 12,
    "min_probability": 0.1,
    "corpus": None,
    "keep_outputs": 0,
}


def drafter(**changes: Any) -> Suffix:
    """One with small numbers."""
    return Suffix(**{**NUMBERS, "target": toy(), **changes})


def begun(tokens: Sequence[int], *, prompt: int | None = None, **changes: Any) -> Suffix:
    """One that has begun on these tokens."""
    made = drafter(**changes)
    start(made, tokens, prompt=prompt)
    return made


def start(made: Suffix, tokens: Sequence[int], *, prompt: int | None = None) -> None:
    """Begin on `tokens`, the first `prompt` (all) of which are the prompt."""
    context = Context.of(tokens, torch.device("cpu"))
    context.prompt_length = len(tokens) if prompt is None else prompt
    made.begin(context, NOTHING)


def drafted(made: Suffix) -> list[tuple[int, ...]]:
    """Paths in order of growth."""
    return [tuple(path) for path in made.grown().branches()]


def rule(text: list[int], numbers: dict[str, Any]) -> float:
    """The best sum of D over all matches, by search: the paper's rule."""
    best = 0.0
    for size in range(1, min(len(text), numbers["max_match"] + 1)):
        context = text[len(text) - size :]
        total = len(ends(text, context))
        if total < 2:
            break
        room = min(numbers["max_tokens"], int(numbers["alpha"] * size))
        found = []
        for depth in range(1, room + 1):
            places = [end for end in ends(text, context) if end + depth <= len(text)]
            kinds = {tuple(text[end : end + depth]) for end in places}
            found += [len(ends(text, [*context, *kind])) / total for kind in kinds]
        kept = sorted(one for one in found if one >= numbers["min_probability"] - 1e-9)
        best = max(best, sum(kept[::-1][:room]))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_the_tree_is_that_of_the_paper_s_rule(seed: int) -> None:
    dice = random.Random(seed)
    numbers = {
        "alpha": dice.choice([0.5, 1.0, 2.0]),
        "max_tokens": dice.randint(1, 6),
        "min_probability": dice.choice([0.0, 0.1, 0.3]),
        # Long enough that no context of this text has to be cut.
        "max_match": 64,
    }
    text = [dice.randrange(3) for _ in range(dice.randint(2, 25))]
    made = begun(text, **numbers)
    for _ in range(8):
        assert made.grown().score == pytest.approx(rule(text, {**NUMBERS, **numbers}))
        more = [dice.randrange(3) for _ in range(dice.randint(1, 3))]
        text += more
        made.context.extend(more)
        if dice.random() < 0.3:
            kept = dice.randint(2, len(text))
            del text[kept:]
            made.context.truncate(kept)
            made.truncate(kept)


def test_the_budget_grows_with_the_match() -> None:
    text = [9, 1, 2, 3, 4, 5, 6, 7, 8]
    for size in (1, 2, 3):
        said = [*text, 0, *text[1 : 1 + size]]
        assert drafted(begun(said)) == [
            tuple(text[1 + size : 1 + size + depth]) for depth in range(1, size + 1)
        ]
        assert len(drafted(begun(said, alpha=2.0))) == 2 * size
        assert len(drafted(begun(said, alpha=2.0, max_tokens=3))) == min(3, 2 * size)
    assert drafted(begun([*text, 0, 1], alpha=0.5)) == []


def test_branches_are_ranked_by_count() -> None:
    made = begun([1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 2], alpha=1.5)
    assert drafted(made) == [(4,), (4, 1), (4, 1, 2)]
    made = begun([1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 2], alpha=3.0, min_probability=0.25)
    assert drafted(made)[:3] == [(4,), (4, 1), (4, 1, 2)]
    assert (3,) in drafted(made)
    # Four occurrences of (1, 2), one of them the end: 4 follows half of them.
    assert made.grown().nodes[0].probability == pytest.approx(0.5)


@pytest.mark.parametrize("tokens", [[7], [1, 2, 3], [0, 1, 2, 3, 4, 5]])
def test_no_match_no_draft(tokens: list[int]) -> None:
    made = begun(tokens)
    assert made.match_length == 0
    assert drafted(made) == []
    for tree in ("native", "dynamic", "chain"):
        assert grown(made, tree) == []


def grown(made: Suffix, tree: str, **numbers: object) -> list[tuple[int, ...]]:
    """Token paths of one draft."""
    growing = builder()
    policy = component("tree", tree, proposal="place", **numbers)
    policy.grow(growing, made, Budget(rows=policy.max_nodes, depth=policy.depth))
    return paths(growing.build())


def test_native_and_expand_draft_the_same_tree() -> None:
    dice = random.Random(2)
    for _ in range(10):
        made = begun([dice.randrange(3) for _ in range(60)], alpha=3.0)
        wanted = sorted(drafted(made))
        assert wanted, "a text of three tokens repeats itself"
        assert grown(made, "native", depth=12, max_nodes=40) == wanted
        assert grown(made, "dynamic", depth=12, top_k=12, max_nodes=40) == wanted


def test_a_small_budget_keeps_the_likeliest() -> None:
    dice = random.Random(4)
    made = begun([dice.randrange(3) for _ in range(90)], alpha=4.0)
    best = drafted(made)
    assert len(best) > 5
    assert [tuple(one) for one in made.native(Budget(rows=5, depth=64))] == best[:4]
    assert {tuple(one) for one in made.native(Budget(rows=64, depth=2))} == {
        one for one in best if len(one) <= 2
    }
    assert grown(made, "native", depth=12, max_nodes=5) == sorted(best[:4])


def test_scores_are_shares_by_count() -> None:
    made = begun([1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 2], alpha=3.0)
    growing = builder()
    policy = component("tree", "dynamic", proposal="place", top_k=8, max_nodes=32, depth=8)
    policy.grow(growing, made, Budget(rows=32, depth=8))
    nodes = growing.nodes()
    found = dict(zip(nodes.tokens[:2].tolist(), nodes.scores[:2].exp().tolist(), strict=True))
    assert found[4] == pytest.approx(0.5)
    assert found[3] == pytest.approx(0.25)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("tree", ["native", "dynamic", "chain", "static"])
def test_text_is_the_oracle_s_without_a_cache(family: str, tree: str) -> None:
    assert family in TINY
    prompt = (5, 17, 42, 17, 42, 8, 5, 17, 42)
    made = Composition(target=target(family), drafter=drafter(alpha=3.0), tree=tree_of(tree))
    outcome = decode(made, prompt, 24)
    assert outcome.tokens == oracle(family, prompt, 24)
    assert sum(record.draft.num_rows - 1 for record in outcome.records) > 0


def test_a_prompt_of_one_token() -> None:
    made = Composition(target=target("llama"), drafter=drafter(), tree=tree_of("native"))
    assert decode(made, (5,), 12).tokens == oracle("llama", (5,), 12)


def periodic(**changes: Any) -> Composition:
    """The toy of six tokens, whose greedy text repeats itself, with deep trees."""
    tree = component("tree", "native", proposal="place", depth=32, max_nodes=64)
    return Composition(target=toy(), drafter=drafter(max_tokens=32, **changes), tree=tree)


def test_a_repeated_text_is_accepted_in_full() -> None:
    outcome = decode(periodic(), (1, 2, 3), 160)
    plain = decode(Composition(target=toy()), (1, 2, 3), 160)
    assert outcome.tokens == plain.tokens
    later = outcome.records[len(outcome.records) // 2 :]
    for record in later[:-1]:
        assert record.num_accepted == record.draft.depth, "every drafted token is right"
    assert max(record.num_accepted for record in later) == 16, "alpha * max_match"


def test_a_said_text_is_accepted_as_fast_as_the_match_allows() -> None:
    """The target says again what the prompt holds: drafts double with the match until the cap."""
    text = decode(Composition(target=target("llama")), (5, 17), 60).tokens
    made = Composition(
        target=target("llama"),
        drafter=drafter(max_tokens=32, max_match=64),
        tree=component("tree", "chain", proposal="place", depth=32, max_nodes=33),
    )
    # The drafter is told the whole text first, as if it had been in the prompt.
    made.drafter = Told(text, made.drafter)
    outcome = decode(made, (5, 17), 60)
    assert outcome.tokens == text
    sizes = [len(record.tokens) for record in outcome.records]
    assert len(sizes) <= 8, sizes


class Told(Suffix):
    """A suffix drafter whose automaton has read a text before the prompt."""

    def __init__(self, text: Sequence[int], like: Any) -> None:
        numbers = {name: getattr(like, name) for name in NUMBERS if name != "corpus"}
        super().__init__(**numbers, corpus=None, target=toy())
        self._outputs = [list(text)]
        for token in text:
            self._earlier.push(token)


def test_what_ends_a_text_may_lie_inside_a_draft() -> None:
    plain = decode(Composition(target=toy()), (1, 2, 3), 160).tokens
    composition = periodic()
    composition.stop = type(composition.stop)(eos=[plain[40]], strings=None, criteria=None)
    first = plain.index(plain[40])
    outcome = decode(composition, (1, 2, 3), 160)
    assert outcome.tokens == plain[: first + 1]
    # Seen before in the prompt, and drafted with what followed it there.
    prompt = (1, 2, 3, *plain[: first + 9], *plain[:2])
    for record in decode(composition, prompt, 40).records[:-1]:
        assert plain[40] not in record.tokens


def test_truncation_forgets_what_was_taken_back() -> None:
    made = begun([1, 2, 3, 4, 1, 2, 3], keep_outputs=1)
    start(made, [1, 2, 3, 5, 1, 2], prompt=3)
    made.context.extend([3, 5])
    assert made.match_length == 4
    made.context.truncate(6)
    made.truncate(6)
    made.context.extend([0])
    fresh = begun([1, 2, 3, 5, 1, 2, 0])
    assert drafted(made) == drafted(fresh) == []
    assert made.match_length == 0


def test_nothing_is_kept_unless_asked() -> None:
    made = begun([1, 2, 3, 4, 5], prompt=1)
    start(made, [2, 3])
    assert drafted(made) == []
    assert made.warm is None


def test_earlier_outputs_are_kept_on_request_and_said_to_be() -> None:
    made = begun([1, 2, 3, 4, 5], prompt=2, keep_outputs=4)
    assert made.warm is False, "the first is cold"
    start(made, [0, 3, 4])
    assert made.warm
    assert drafted(made) == [(5,)]
    start(made, [1, 2])
    assert drafted(made) == [], "prompts are not kept"


def test_the_latest_outputs_stay() -> None:
    made = drafter(keep_outputs=2)
    for number in range(10):
        start(made, [50 + number, 60 + number, 70 + number], prompt=0)
    start(made, [50])
    assert drafted(made) == []
    for number in (8, 9):
        start(made, [50 + number], prompt=1)
        assert drafted(made) == [(60 + number,)]
    assert len(made._outputs) <= 4


def test_two_answers_and_an_output_do_not_run_together() -> None:
    made = begun([1, 2, 3], prompt=0, keep_outputs=4)
    start(made, [4, 5], prompt=0)
    start(made, [3])
    assert drafted(made) == []


def test_a_warm_engine_accepts_more_and_says_the_same(tmp_path: Path) -> None:
    words = ["target=toy", "drafter=suffix", "tree=native", "sampling.temperature=0.9", "seed=3"]
    engine = load([*words, "drafter.keep_outputs=8", "drafter.alpha=4"])
    steps = []
    answers = []
    for _ in range(2):
        loop = engine.decoding(max_new_tokens=64)
        loop.begin((1, 2, 3))
        records = []
        while loop.finish_reason is None:
            records.append(loop.step())
        steps.append(len(records))
        answers.append(loop.context.tokens)
    assert answers[0] == answers[1]
    assert steps[1] < steps[0], "the second time it knows the text"


def test_a_corpus_is_copied_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answers.jsonl"
    lines = [{"tokens": [1, 2, 3, 4, 5]}, {"tokens": [1, 2, 3, 0]}, {"tokens": [1, 2, 3, 4, 1]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = begun([0, 2, 3], corpus=str(path))
    # (2, 3) is there three times, and once at the end of this text: 4 has D = 2 / 4.
    assert drafted(made)[0] == (4,)
    assert made.grown().nodes[0].probability == pytest.approx(0.5)
    assert made.match_length == 0, "of the text itself"
    # The text's own longer match is better.
    said = [3, 1, 4, 2, 3, 1, 4, 0, 3, 1, 4, 2, 3, 1, 4]
    assert drafted(begun(said, corpus=str(path))) == drafted(begun(said))


def test_the_router_s_question_is_answered_at_any_time() -> None:
    made = begun([1, 2, 3, 1, 2])
    assert made.match_length == 2
    made.context.extend([3])
    assert made.match_length == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["like a language", "said twice", "a period of 50"])
def test_a_step_in_a_long_context_costs_little(kind: str) -> None:
    """The whole of a draft on the host behind 100,000 tokens, in microseconds of processor time."""
    text = texts()[kind]
    made = begun(text[: TOKENS - 2000], max_match=64, max_tokens=32)
    spent = []
    for token in itertools.islice(text, TOKENS - 2000, TOKENS):
        made.context.extend([token])
        began = time.process_time()
        made.native(Budget(rows=33, depth=32))
        spent.append((time.process_time() - began) * 1e6)
    mean, worst = sum(spent) / len(spent), max(spent)
    print(f"\n{kind}: {mean:.0f} us a step, {worst:.0f} at most")
    assert mean < 500
