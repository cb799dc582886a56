"""The automaton against a search of the whole text, while the text grows and shrinks."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence

import pytest

from specframe.lookup.suffix_automaton import SEPARATOR, SuffixAutomaton, TextMatcher

TOKENS = 100_000
MOST_US = 50.0  # microseconds a token


def ends(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """Where `part` ends in `text`."""
    size = len(part)
    return [i for i in range(size, len(text) + 1) if list(text[i - size : i]) == list(part)]


def following(text: Sequence[int], part: Sequence[int]) -> Counter[int]:
    """What follows `part`, by count."""
    return Counter(text[end] for end in ends(text, part) if end < len(text))


def longest(text: Sequence[int]) -> int:
    """Tokens of the longest suffix that ends somewhere before."""
    size = len(text)
    return max((n for n in range(1, size) if len(ends(text, text[size - n :])) > 1), default=0)


def expected_matches(text: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """(length, count) of each suffix up to `limit` that occurs before; one per set of places."""
    found: list[tuple[int, int]] = []
    for size in range(min(longest(text), limit), 0, -1):
        count = len(ends(text, text[len(text) - size :]))
        if not found or found[-1][1] != count:
            found.append((size, count))
    return found


def of(text: Sequence[int], *, max_counted: int) -> SuffixAutomaton:
    """That of a text."""
    made = SuffixAutomaton(max_counted=max_counted)
    for token in text:
        made.push(token)
    return made


def assert_equal_to_a_search(made: SuffixAutomaton, text: Sequence[int]) -> None:
    """Longest match, counts, and what follows, two tokens deep."""
    assert made.tokens == list(text)
    assert made.match_length == longest(text)
    matches = list(made.matches())
    found = [(one.length, made.count(one)) for one in matches]
    assert found == expected_matches(text, made.max_context)
    for match in matches:
        context = list(text[len(text) - match.length :])
        for token, count, place in made.children(match):
            assert count == following(text, context)[token]
            deeper = [*context, token][-made.max_context :]
            assert (place.length, made.count(place)) == (len(deeper), len(ends(text, deeper)))
            after = {token: count for token, count, _ in made.children(place)}
            assert after == following(text, deeper)
        assert {one for one, _, _ in made.children(match)} == set(following(text, context))


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_what_a_search_finds(seed: int) -> None:
    dice = random.Random(seed)
    made, text = SuffixAutomaton(max_counted=dice.randint(2, 7)), []
    letters = dice.randint(1, 4)
    for _ in range(40):
        if text and dice.random() < 0.2:
            for _ in range(dice.randint(1, len(text))):
                made.pop()
                text.pop()
        else:
            text.append(dice.randrange(letters))
            made.push(text[-1])
        assert_equal_to_a_search(made, text)


@pytest.mark.parametrize("seed", range(30))
def test_taking_back_leaves_no_trace(seed: int) -> None:
    dice = random.Random(seed)
    text = [dice.randrange(3) for _ in range(80)]
    kept = dice.randint(0, 60)
    made, fresh = of(text, max_counted=5), of(text[:kept], max_counted=5)
    for _ in range(len(text) - kept):
        made.pop()
    hidden = {"_count"}  # of long substrings it is not kept
    for name in vars(fresh).keys() - hidden:
        assert getattr(made, name) == getattr(fresh, name), name
    assert_equal_to_a_search(made, text[:kept])


def test_a_text_of_one_token_has_no_match() -> None:
    assert list(of([], max_counted=4).matches()) == []
    assert list(of([7], max_counted=4).matches()) == []
    assert of([7, 7], max_counted=4).match_length == 1
    assert of([1, 2, 3], max_counted=4).match_length == 0


def test_least_leaves_out_what_is_rare() -> None:
    made = of([1, 2, 1, 2, 1, 3, 1], max_counted=4)
    match = next(made.matches())
    assert [(token, count) for token, count, _ in made.children(match)] == [(3, 1), (2, 2)]
    assert [token for token, _, _ in made.children(match, 2)] == [2]


@pytest.mark.parametrize("seed", range(30))
def test_a_reader_finds_another_text(seed: int) -> None:
    dice = random.Random(seed)
    texts = [[dice.randrange(3) for _ in range(dice.randint(1, 12))] for _ in range(4)]
    held = [token for text in texts for token in [*text, SEPARATOR]]
    made = of(held, max_counted=6)
    reader, read = TextMatcher(made), []
    for _ in range(30):
        read.append(dice.randrange(4))
        reader.read(read[-1:])
        sizes = [n for n in range(1, len(read) + 1) if ends(held, read[-n:])]
        wanted = min(max(sizes, default=0), made.max_context)
        matches = list(reader.matches())
        assert (matches[0].length if matches else 0) == wanted
        for match in matches:
            expected = following(held, read[-match.length :])
            expected.pop(SEPARATOR, None)
            assert {t: count for t, count, _ in reader.children(match)} == expected


def texts() -> dict[str, list[int]]:
    """Of 100,000 tokens each: words as rare as those of a language, repetitions, pure chance."""
    dice = random.Random(0)
    weights = [1 / (rank + 1) for rank in range(5000)]
    words = dice.choices(range(5000), weights, k=TOKENS)
    return {
        "like a language": words,
        "said twice": words[: TOKENS // 2] * 2,
        "one token": [7] * TOKENS,
        "a period of 50": [i % 50 for i in range(TOKENS)],
        "eight tokens at random": dice.choices(range(8), k=TOKENS),
        "all different": list(range(TOKENS)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", texts())
def test_a_long_context_costs_microseconds_a_token(kind: str) -> None:
    """100,000 tokens at under 50 microseconds of processor time each. Prints what it took."""
    text = texts()[kind]
    made = SuffixAutomaton(max_counted=65)
    began = time.process_time()
    for token in text:
        made.push(token)
    pushed = (time.process_time() - began) * 1e6 / TOKENS
    began = time.process_time()
    for _ in range(TOKENS // 10):
        made.pop()
    popped = (time.process_time() - began) * 1e7 / TOKENS
    tracemalloc.start()
    held = of(text, max_counted=65)
    size = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    print(f"\n{kind}: {pushed:.1f} us a token, {popped:.1f} to take one back, {size:.0f} MB")
    assert held.num_states <= 2 * TOKENS
    assert pushed < MOST_US
    assert popped < MOST_US
