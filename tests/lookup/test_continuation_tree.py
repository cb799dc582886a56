"""Best-first growth against an enumeration of every continuation."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from specframe.lookup.continuation_tree import ContinuationTree, likeliest_continuations
from specframe.lookup.suffix_automaton import SuffixAutomaton


class Exact:
    """Counts of a text by search; a location is the context itself."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)

    def count(self, location: Sequence[int]) -> int:
        size = len(location)
        return sum(
            self.text[i - size : i] == list(location) for i in range(size, len(self.text) + 1)
        )

    def children(
        self, location: Sequence[int], min_count: float = 0.0
    ) -> list[tuple[int, int, list[int]]]:
        found = []
        for token in sorted(set(self.text)):
            count = self.count([*location, token])
            if count and count >= min_count:
                found.append((token, count, [*location, token]))
        return found


def shares(exact: Exact, context: list[int], depth: int) -> dict[tuple[int, ...], float]:
    """Every continuation of `context` by its share of the context's occurrences."""
    total, found = exact.count(context), {}
    paths: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        paths = [
            (*path, token) for path in paths for token, _, _ in exact.children([*context, *path])
        ]
        found |= {path: exact.count([*context, *path]) / total for path in paths}
    return found


def grown(text: Sequence[int], context: list[int], **numbers: float) -> ContinuationTree:
    """By the automaton of `text`, whose end `context` is."""
    made = SuffixAutomaton(max_counted=32)
    for token in text:
        made.push(token)
    place = next(one for one in made.matches() if one.length >= len(context))
    limits = {"max_nodes": 8, "max_depth": 4, "min_probability": 0.0, **numbers}
    return likeliest_continuations(made, place, total=made.count(place), **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_the_likeliest_nodes_are_taken(seed: int) -> None:
    dice = random.Random(seed)
    text = [dice.randrange(3) for _ in range(dice.randint(8, 40))]
    made = SuffixAutomaton(max_counted=32)
    for token in text:
        made.push(token)
    match = next(iter(made.matches()), None)
    if match is None:
        return
    floor, room = dice.choice([0.0, 0.15, 0.4]), dice.randint(1, 12)
    tree = likeliest_continuations(
        made,
        match,
        total=made.count(match),
        max_nodes=room,
        max_depth=4,
        min_probability=floor,
    )
    everything = shares(Exact(text), text[len(text) - match.length :], 4)
    paths = [tuple(path) for path in tree.branches()]
    for path, node in zip(paths, tree.nodes, strict=True):
        assert node.probability == pytest.approx(everything[path])
        assert node.depth == len(path)
        assert len(path) == 1 or path[:-1] in paths[: paths.index(path)]
    best = sorted((one for one in everything.values() if one >= floor - 1e-12), reverse=True)
    assert [node.probability for node in tree.nodes] == pytest.approx(best[:room])
    assert tree.score == pytest.approx(sum(best[:room]))


def test_what_children_leave_belongs_to_the_parent() -> None:
    # After 1: 2 twice (once before 3, once before 4), 5 once; the end is an occurrence too.
    tree = grown([1, 2, 3, 1, 2, 4, 1, 5, 1], [1], max_depth=2)
    rest = {tuple(path): node.rest for path, node in zip(tree.branches(), tree.nodes, strict=True)}
    assert rest[(2,)] == pytest.approx(0.0)
    assert rest[(2, 3)] == rest[(2, 4)] == pytest.approx(0.25)
    assert rest[(5,)] == pytest.approx(0.0)
    assert rest[(5, 1)] == pytest.approx(0.25)


def test_no_room_no_nodes() -> None:
    assert grown([1, 2, 1], [1], max_nodes=0).nodes == []
    assert grown([1, 2, 1], [1], max_depth=0).nodes == []
    assert grown([1, 2, 1], [1], min_probability=0.6).nodes == []
