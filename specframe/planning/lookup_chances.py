"""How likely looked-up tokens are right: by the length of the match, corrected by this sequence.

A look-up knows before the step what it would draft, so every token that the step emits shows
whether it would have been right, drafted or not. A prior by the length of the match is therefore
corrected all the time, also while nothing is drafted: tree=auto notices when a text begins to
repeat itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specframe.lookup.foresight import Prospect
from specframe.lookup.trie import Trie, TrieNode

_BANDS = (2, 6)  # a match of up to 2 tokens counts as short, of up to 6 as middling
_UNSAID = 2  # matched tokens that a source is taken to have which does not say how many it has
_JUDGED = 8  # children of a node that are judged; the rest hardly ever matter
_CERTAIN = 0.995  # no token is taken to be surer than this


@dataclass
class _Tally:
    """How many tokens were right, and how many were expected to be right."""

    right: float = 0.0
    expected: float = 0.0


class LookupChances:
    """The chance that a node of a source's trie is right where its parent is.

    Equation: chance = base[m + d - 1] * share * (right + w) / (expected + w), for a match of m
    tokens at depth d. share: of the node's weight among its siblings. base: how often a token was
    right after a match of so many tokens (a list, whose last entry holds from there on). w: weight
    of this prior, in expected tokens. right and expected: counts of this sequence so far, kept
    apart for short, middling and long matches of each source.
    """

    def __init__(self, base: Sequence[float], *, weight: float) -> None:
        self._base = list(base)
        self._weight = weight
        self._tallies: dict[tuple[str, int], _Tally] = {}

    def of(self, source: str, length: int, node: TrieNode) -> list[tuple[TrieNode, float]]:
        """(child, chance) of the children of a node behind `length` matched tokens, best first."""
        tally = self._tally(source, length)
        factor = (tally.right + self._weight) / (tally.expected + self._weight)
        return [
            (child, min(prior * factor, _CERTAIN)) for child, prior in self._priors(length, node)
        ]

    def learn(self, prospect: Prospect, tokens: Sequence[int]) -> None:
        """Judge what was known before a step by the tokens that the step emitted."""
        if prospect.known is None:
            return
        node, length = prospect.known.root, match_length(prospect)
        for token in tokens:
            if not node.children:
                return
            tally = self._tally(prospect.source, length)
            for child, prior in self._priors(length, node):
                tally.expected += prior
                tally.right += child.token == token
            if token not in node.children:
                return
            node, length = node.children[token], length + 1

    def _priors(self, length: int, node: TrieNode) -> list[tuple[TrieNode, float]]:
        base = self._base[min(max(length, 1), len(self._base)) - 1]
        total = sum(child.weight for child in node.children.values())
        ranked = node.ranked()[:_JUDGED]
        return [(child, base * child.weight / total) for child in ranked if child.weight > 0]

    def _tally(self, source: str, length: int) -> _Tally:
        band = sum(length > limit for limit in _BANDS)
        return self._tallies.setdefault((source, band), _Tally())


def match_length(prospect: Prospect) -> int:
    """How many tokens a source has matched, or is taken to have matched."""
    return _UNSAID if prospect.match_length is None else prospect.match_length


@dataclass(frozen=True, kw_only=True)
class LikelyPath:
    """A node that may be drafted."""

    path: tuple[int, ...]  # its tokens from the root on
    chance: float  # that all of them are right


def likeliest_paths(
    prospect: Prospect, chances: LookupChances, *, depth: int
) -> Iterator[LikelyPath]:
    """The nodes of a look-up by falling chance of their paths, parents first.

    Of two paths of the same chance the one that was met first comes first.
    """
    assert prospect.known is not None
    length = match_length(prospect)
    heap: list[tuple[float, int, tuple[int, ...], TrieNode]] = []
    num_pushed = 0  # the heap compares it where chances are equal

    def offer(node: TrieNode, path: tuple[int, ...], above: float) -> None:
        nonlocal num_pushed
        if len(path) == depth or not node.children:
            return
        for child, chance in chances.of(prospect.source, length + len(path), node):
            num_pushed += 1
            heapq.heappush(heap, (-above * chance, num_pushed, (*path, child.token), child))

    offer(prospect.known.root, (), 1.0)
    while heap:
        negative, _, path, node = heapq.heappop(heap)
        yield LikelyPath(path=path, chance=-negative)
        offer(node, path, -negative)


def chain_prospect(length: int, *, match_length: int) -> Prospect:
    """A look-up of one branch of `length` tokens, for estimates without a text."""
    trie = Trie(max_nodes=length)
    trie.add(range(length))
    return Prospect(source="", expand=lambda _: [], known=trie, match_length=match_length)
