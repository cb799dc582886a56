"""Expand by path probability and re-rank, against a search written without tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

from specframe.testing.draft_checks import VOCAB, TableDrafter, builder, check_draft, paths
from specframe.tree.dynamic import DynamicTree
from specframe.types import Budget, Frontier, Proposal

Path = tuple[int, ...]
Ranked = Callable[[Path], list[tuple[int, float]]]  # path -> (token, log-weight), best first


def eagle2(
    ranked: Ranked, *, depth: int, top_k: int, max_nodes: int
) -> list[tuple[float, int, Path]]:
    """Every candidate as (score, flat index, path), the chosen max_nodes - 1 first."""
    made: list[tuple[float, int, Path]] = []
    beam: list[tuple[float, int, Path]] = [(0.0, -1, ())]
    for _ in range(depth):
        level = []
        for score, _, path in beam:
            for token, weight in ranked(path)[:top_k]:
                level.append((score + weight, len(made) + len(level), (*path, token)))
        made += level
        beam = sorted(level, key=lambda one: (-one[0], one[1]))[:top_k]
    return sorted(made, key=lambda one: (-one[0], one[1]))


def dynamic(depth: int, top_k: int, max_nodes: int) -> DynamicTree:
    """The policy under test."""
    return DynamicTree(depth=depth, top_k=top_k, max_nodes=max_nodes, proposal="place")


def grown(policy: DynamicTree, source: object, *, temperature: float = 1.0) -> list[Path]:
    """Token paths of its draft."""
    made = builder(temperature=temperature)
    budget = Budget(rows=policy.max_nodes, depth=policy.depth)
    policy.grow(made, source, budget)  # type: ignore[arg-type]
    draft = made.build()
    check_draft(draft, budget)
    return paths(draft)


def by_table(table: torch.Tensor) -> Ranked:
    """The reference's view of a TableDrafter under root 3."""
    logq = table.log_softmax(-1)

    def ranked(path: Path) -> list[tuple[int, float]]:
        row = logq[path[-1] if path else 3].tolist()
        return sorted(enumerate(row), key=lambda one: (-one[1], one[0]))

    return ranked


@pytest.mark.parametrize(
    ("depth", "top_k", "max_nodes"),
    [(3, 2, 6), (4, 3, 9), (5, 4, 16), (2, 5, 31), (4, 1, 9), (1, 3, 2)],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_is_eagle_2(depth: int, top_k: int, max_nodes: int, temperature: float) -> None:
    for seed in range(4):
        table = TableDrafter(seed)
        expected = eagle2(by_table(table.table), depth=depth, top_k=top_k, max_nodes=max_nodes)
        chosen = sorted(path for _, _, path in expected[: max_nodes - 1])
        assert grown(dynamic(depth, top_k, max_nodes), table, temperature=temperature) == chosen


class Tied:
    """Candidates whose log-weights are 0 or -1, so that most scores are equal."""

    def __init__(self, seed: int) -> None:
        self.tokens = torch.rand(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))
        self.tokens = self.tokens.argsort(-1)[:, :4]
        ones = torch.rand(VOCAB, 4, generator=torch.Generator().manual_seed(seed + 50)) < 0.5
        self.weights = -ones.double().sort(-1).values

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        at = frontier.tokens.clamp_min(0)
        return [Proposal(candidates=self.tokens[at], scores=self.weights[at])]

    def ranked(self, path: Path) -> list[tuple[int, float]]:
        at = path[-1] if path else 3
        return list(zip(self.tokens[at].tolist(), self.weights[at].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_ties_go_by_index_and_never_lose_an_ancestor(seed: int) -> None:
    source = Tied(seed)
    for top_k, max_nodes in itertools.product((1, 2, 3), (3, 6, 11, 40)):
        expected = eagle2(source.ranked, depth=4, top_k=top_k, max_nodes=max_nodes)
        chosen = {path for _, _, path in expected[: max_nodes - 1]}
        found = grown(dynamic(4, top_k, max_nodes), source)
        assert set(found) == chosen
        assert all(path[:-1] in chosen for path in found if len(path) > 1)


def test_the_sum_of_scores_is_the_largest_possible() -> None:
    table = TableDrafter(3)
    candidates = eagle2(by_table(table.table), depth=3, top_k=2, max_nodes=99)
    scores = {path: score for score, _, path in candidates}

    def closed(chosen: Sequence[Path]) -> bool:
        return all(path[:-1] in chosen for path in chosen if len(path) > 1)

    for size in (1, 3, 5):
        best = max(
            sum(scores[path] for path in chosen)
            for chosen in itertools.combinations(scores, size)
            if closed(chosen)
        )
        found = grown(dynamic(3, 2, size + 1), table)
        assert sum(scores[path] for path in found) == pytest.approx(best, abs=1e-12)


def test_one_child_a_node_is_a_chain() -> None:
    made, table = builder(), TableDrafter(4)
    dynamic(4, 1, 9).grow(made, table, Budget(rows=9, depth=9))
    assert made.build().chain
    likeliest, token = [], 3
    for _ in range(4):
        token = int(table.table[token].argmax())
        likeliest.append(token)
    assert paths(made.build())[-1] == tuple(likeliest)


class Two:
    """Two sources that agree on one token; the second knows another one."""

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        size = len(frontier)
        one = torch.tensor([[5, 6]]).expand(size, -1)
        two = torch.tensor([[6, 8]]).expand(size, -1)
        weights = torch.tensor([[-0.5, -1.0]], dtype=torch.float64).expand(size, -1)
        return [
            Proposal(candidates=one, scores=weights, source="one"),
            Proposal(candidates=two, scores=weights - 0.25, source="two"),
        ]


def test_several_sources_meet_in_one_tree() -> None:
    found = grown(dynamic(1, 4, 9), Two())
    assert found == [(5,), (6,), (8,)]
    deep = grown(dynamic(2, 3, 30), Two())
    assert len(deep) == len(set(deep)) == 3 + 9
