"""How likely looked-up tokens are right: by the length of the match, corrected by the text."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specframe.lookup.foresight import Prospect
from specframe.lookup.trie import Trie, TrieNode

_BANDS = (2, 6)  # matched tokens up to which a match counts as short, as middling
_UNSAID = 2  # tokens that a source which does not tell its match is taken to have matched
_JUDGED = 8  # children of a node that are judged; the rest hardly ever matter
_CERTAIN = 0.995  # no token is surer than this


@dataclass
class _Tally:
    """How many tokens were right, and how many were expected to be."""

    right: float = 0.0
    expected: float = 0.0


class LookupChances:
    """The chance that a node of a source's trie is right where its parent is.

    Equation: chance = base[m + d - 1] share (right + w) / (expected + w), for a match of m tokens
    at depth d; share: the node's weight among its siblings; base: how often a token after a match
    of so many was right (a list, its last entry goes on); w: the weight of that prior, in expected
    tokens; right and expected: of this sequence so far, apart for short, middling and long matches
    of each source. Every emitted token is judged, drafted or not, since a look-up is known before.
    """

    def __init__(self, base: Sequence[float], *, weight: float) -> None:
        self._base = list(base)
        self._weight = weight
        self._tallies: dict[tuple[str, int], _Tally] = {}

    def of(self, source: str, length: int, node: TrieNode) -> list[tuple[TrieNode, float]]:
        """(child, its chance) of those of a node behind `length` matched tokens, best first."""
        tally = self._tally(source, length)
        factor = (tally.right + self._weight) / (tally.expected + self._weight)
        return [
            (child, min(prior * factor, _CERTAIN)) for child, prior in self._priors(length, node)
        ]

    def learn(self, prospect: Prospect, tokens: Sequence[int]) -> None:
        """Judge what was known before a step by the tokens that it emitted."""
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
    """Tokens of its match."""
    return _UNSAID if prospect.match_length is None else prospect.match_length


@dataclass(frozen=True, kw_only=True)
class LikelyPath:
    """A node that may be drafted: its tokens from the root on, and how likely all are right."""

    path: tuple[int, ...]
    chance: float


def likeliest_paths(
    prospect: Prospect, chances: LookupChances, *, depth: int
) -> Iterator[LikelyPath]:
    """The nodes of a look-up by falling chance of their paths, parents first; ties: found first."""
    assert prospect.known is not None
    length = match_length(prospect)
    heap: list[tuple[float, int, tuple[int, ...], TrieNode]] = []
    found = 0

    def offer(node: TrieNode, path: tuple[int, ...], above: float) -> None:
        nonlocal found
        if len(path) == depth or not node.children:
            return
        for child, chance in chances.of(prospect.source, length + len(path), node):
            found += 1
            heapq.heappush(heap, (-above * chance, found, (*path, child.token), child))

    offer(prospect.known.root, (), 1.0)
    while heap:
        negative, _, path, node = heapq.heappop(heap)
        yield LikelyPath(path=path, chance=-negative)
        offer(node, path, -negative)


def chain_prospect(length: int, *, match_length: int) -> Prospect:
    """A look-up that goes on for `length` tokens without a second opinion, to reckon with."""
    trie = Trie(max_nodes=length)
    trie.add(range(length))
    return Prospect(source="", expand=lambda _: [], known=trie, match_length=match_length)
