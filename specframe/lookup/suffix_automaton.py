"""An on-line suffix automaton of a token sequence, with the counts of its short substrings.

A state stands for the substrings that end at the same places. The link of the last state is the
longest suffix that occurs before, so the longest match costs nothing to keep; a token is added in
amortised constant time (Blumer et al., The smallest automaton recognizing the subwords of a text,
1985). The count of a state changes with every token for all suffixes, O(depth), so counts are kept
for substrings of at most `max_counted` tokens: at most that many increments a token, about one per
distinct context of the last few tokens in practice. What was added last can be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

ROOT = 0
SEPARATOR = -1  # a token that no text has: matches and continuations end there


@dataclass(frozen=True, slots=True)
class Location:
    """A substring of `length` tokens, by its state."""

    state: int
    length: int


class Automaton:
    """Substrings of the tokens pushed so far.

    max_counted: longest substring whose count is known, at least 2. A longer context is cut to its
    last max_counted - 1 tokens, so that the counts of what may follow it are known.
    """

    def __init__(self, *, max_counted: int) -> None:
        self.tokens: list[int] = []
        self.max_context = max_counted - 1
        self._max_counted = max_counted
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of a state's longest substring
        self._count = [0]  # of places where it ends; kept where its shortest is short enough
        self._last = ROOT  # the whole text
        self._cursor = ROOT  # the last max_counted tokens
        self._sizes: list[int] = []  # per token: states before it; the first one made is its own
        self._cursors: list[int] = []  # per token: the cursor before it
        self._split_from: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_states(self) -> int:
        """States made, the root included; at most twice the tokens."""
        return len(self._link)

    @property
    def match_length(self) -> int:
        """Tokens of the longest suffix that also ends somewhere before."""
        return max(0, self._length[self._link[self._last]]) if self._last else 0

    def push(self, token: int) -> None:
        """Add a token."""
        follow, link, length = self._next, self._link, self._length
        new = len(link)
        self.tokens.append(token)
        self._sizes.append(new)
        self._cursors.append(self._cursor)
        follow.append({})
        link.append(ROOT)
        length.append(len(self.tokens))
        self._count.append(0)
        state = self._last
        while state >= 0 and token not in follow[state]:
            follow[state][token] = new
            state = link[state]
        if state >= 0:
            old = follow[state][token]
            short = length[old] == length[state] + 1
            link[new] = old if short else self._split(old, state, token)
        self._last = new
        self._cursor = self._moved_cursor(token)
        self._add_to_counts(1)

    def pop(self) -> None:
        """Take the last token back; amortised as cheap as adding it."""
        follow, link = self._next, self._link
        self._add_to_counts(-1)
        token, size = self.tokens.pop(), self._sizes.pop()
        self._cursor = self._cursors.pop()
        self._last = self._sizes[-1] if self._sizes else ROOT
        new, split = size, size + 1
        old = self._split_from.pop(split, -1)
        if old >= 0:
            link[old] = link[split]
        state = self._last
        while state >= 0 and follow[state].get(token) == new:
            del follow[state][token]
            state = link[state]
        while old >= 0 and state >= 0 and follow[state].get(token) == split:
            follow[state][token] = old
            state = link[state]
        for table in (follow, link, self._length, self._count):
            del table[size:]

    def count(self, place: Location) -> int:
        """How often a substring of at most max_counted tokens occurs, the text's end included."""
        return self._count[place.state]

    def matches(self) -> Iterator[Location]:
        """The text's suffixes that occur before, longest first, at most max_context tokens long.

        One for each set of occurrences: a shorter one is left out if it only occurs with a longer.
        """
        matched = self.match_length
        if matched > self.max_context:
            yield from self.suffixes(self._cut(self._cursor, self._max_counted))
        elif matched:
            yield from self.suffixes(Location(self._link[self._last], matched))

    def suffixes(self, place: Location) -> Iterator[Location]:
        """A substring and its suffixes that occur elsewhere too, longest first."""
        while place.state > ROOT:
            yield place
            state = self._link[place.state]
            place = Location(state, self._length[state])

    def children(self, place: Location, least: float = 0.0) -> list[tuple[int, int, Location]]:
        """(token, count, context) of what follows a context at least `least` times, the one seen
        first last."""
        counts = self._count
        return [
            (token, counts[state], self._cut(state, place.length + 1))
            for token, state in reversed(self._next[place.state].items())
            if counts[state] >= least and token != SEPARATOR
        ]

    def step(self, place: Location, token: int) -> Location:
        """The longest suffix of a context and `token` that occurs, cut to max_context tokens."""
        state, length = place.state, place.length
        while state > ROOT and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token not in self._next[state]:
            return Location(ROOT, 0)
        return self._cut(self._next[state][token], length + 1)

    def _cut(self, state: int, length: int) -> Location:
        """The context that stands for a substring one token too long at most."""
        if length <= self.max_context:
            return Location(state, length)
        link = self._link[state]
        longer = self._length[link] < self.max_context
        return Location(state if longer else link, self.max_context)

    def _split(self, old: int, state: int, token: int) -> int:
        """A state of its own for those substrings of `old` that are `state`'s and token."""
        follow, link = self._next, self._link
        split = len(link)
        follow.append(follow[old].copy())
        link.append(link[old])
        self._length.append(self._length[state] + 1)
        self._count.append(self._count[old])
        while state >= 0 and follow[state].get(token) == old:
            follow[state][token] = split
            state = link[state]
        link[old] = split
        self._split_from[split] = old
        return split

    def _moved_cursor(self, token: int) -> int:
        """The state of the last max_counted tokens (of all, while they are fewer)."""
        cursor, held = self._cursor, min(len(self.tokens) - 1, self._max_counted)
        split = self._link[cursor]
        if self._length[split] >= held > 0:  # the token has split it: the shorter part is meant
            cursor = split
        cursor = self._next[cursor][token]
        if held == self._max_counted and self._length[self._link[cursor]] >= held:
            cursor = self._link[cursor]
        return cursor

    def _add_to_counts(self, change: int) -> None:
        counts, link = self._count, self._link
        state = self._cursor
        while state > ROOT:
            counts[state] += change
            state = link[state]


@dataclass
class Reader:
    """Follows a text of its own through an automaton: what of it occurs there."""

    automaton: Automaton
    place: Location = field(default=Location(ROOT, 0))

    def read(self, tokens: Sequence[int]) -> None:
        """Go on by these tokens, in amortised constant time each."""
        for token in tokens:
            self.place = self.automaton.step(self.place, token)

    def matches(self) -> Iterator[Location]:
        """Suffixes of the text read that occur in the automaton, longest first."""
        return self.automaton.suffixes(self.place)

    def count(self, place: Location) -> int:
        """As the automaton's."""
        return self.automaton.count(place)

    def children(self, place: Location, least: float = 0.0) -> list[tuple[int, int, Location]]:
        """As the automaton's."""
        return self.automaton.children(place, least)
