"""An on-line suffix automaton of a token sequence, with the counts of its short substrings.

A state stands for all substrings that end at the same positions of the text. Its link leads to the
state of the longest suffix that also ends elsewhere, so the link of the last state is the longest
suffix of the text that occurred before: the longest match is known without a search. A token is
added in amortised constant time (Blumer et al., The smallest automaton recognizing the subwords of
a text, 1985; used for drafting by SAM decoding, arXiv 2411.10666). A new token raises the counts of
all suffixes, which is O(depth), so counts are kept for substrings of at most `max_counted` tokens:
at most that many increments a token, in practice about one for each distinct context of the last
few tokens. The tokens that were added last can be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

ROOT = 0
SEPARATOR = -1  # a token that no text has: matches and continuations end there


@dataclass(frozen=True, slots=True)
class Substring:
    """A substring of `length` tokens. `state` stands for it in the automaton that made it."""

    state: int
    length: int


class SuffixAutomaton:
    """All substrings of the tokens pushed so far.

    max_counted: length of the longest substring whose count is known, at least 2. A longer context
    is cut to its last max_counted - 1 tokens, so that the counts of what may follow it are known.
    """

    def __init__(self, *, max_counted: int) -> None:
        self.tokens: list[int] = []
        self.max_context = max_counted - 1
        self._max_counted = max_counted
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of a state's longest substring
        # How often a state's substrings occur, where the shortest of them has at most max_counted.
        self._count = [0]
        self._last = ROOT  # state of the whole text
        self._cursor = ROOT  # state of the last max_counted tokens
        self._sizes: list[int] = []  # by token: number of states before it, its own state's index
        self._cursors: list[int] = []  # by token: the cursor before it
        self._split_from: dict[int, int] = {}  # state made by a split -> state it was cut off from

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_states(self) -> int:
        """Number of states, the root included; at most twice the number of tokens."""
        return len(self._link)

    @property
    def match_length(self) -> int:
        """Length of the longest suffix that also ends somewhere before."""
        return max(0, self._length[self._link[self._last]]) if self._last else 0

    def push(self, token: int) -> None:
        """Add a token, in amortised constant time."""
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
        """Take the last token back; this costs as much as adding it did."""
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

    def count(self, location: Substring) -> int:
        """How often a substring of at most max_counted tokens occurs, the text's end included."""
        return self._count[location.state]

    def matches(self) -> Iterator[Substring]:
        """The text's suffixes that occur before, longest first, at most max_context tokens long.

        A suffix is left out if it occurs only where a longer one that was given occurs.
        """
        matched = self.match_length
        if matched > self.max_context:
            yield from self.suffixes(self._cut(self._cursor, self._max_counted))
        elif matched:
            yield from self.suffixes(Substring(self._link[self._last], matched))

    def suffixes(self, location: Substring) -> Iterator[Substring]:
        """A substring and those of its suffixes that occur elsewhere too, longest first."""
        while location.state > ROOT:
            yield location
            state = self._link[location.state]
            location = Substring(state, self._length[state])

    def children(
        self, location: Substring, min_count: float = 0.0
    ) -> list[tuple[int, int, Substring]]:
        """(token, count, context) of each token that follows a context at least `min_count` times.

        The token that was seen first comes last.
        """
        counts = self._count
        return [
            (token, counts[state], self._cut(state, location.length + 1))
            for token, state in reversed(self._next[location.state].items())
            if counts[state] >= min_count and token != SEPARATOR
        ]

    def step(self, location: Substring, token: int) -> Substring:
        """The longest suffix of a context and `token` that occurs, cut to max_context tokens."""
        state, length = location.state, location.length
        while state > ROOT and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token not in self._next[state]:
            return Substring(ROOT, 0)
        return self._cut(self._next[state][token], length + 1)

    def _cut(self, state: int, length: int) -> Substring:
        """The context that a substring of at most one token more is cut to."""
        if length <= self.max_context:
            return Substring(state, length)
        link = self._link[state]
        longer = self._length[link] < self.max_context
        return Substring(state if longer else link, self.max_context)

    def _split(self, old: int, state: int, token: int) -> int:
        """Cut off from `old` a state for its substrings that are `state`'s with `token` behind."""
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
        """The state of the last max_counted tokens, or of all while there are fewer."""
        cursor, length = self._cursor, min(len(self.tokens) - 1, self._max_counted)
        split = self._link[cursor]
        if self._length[split] >= length > 0:  # the token has split it: the shorter part is meant
            cursor = split
        cursor = self._next[cursor][token]
        if length == self._max_counted and self._length[self._link[cursor]] >= length:
            cursor = self._link[cursor]
        return cursor

    def _add_to_counts(self, change: int) -> None:
        counts, link = self._count, self._link
        state = self._cursor
        while state > ROOT:
            counts[state] += change
            state = link[state]


@dataclass
class TextMatcher:
    """Reads a text of its own and knows which of its suffixes occur in an automaton."""

    automaton: SuffixAutomaton
    longest: Substring = field(default=Substring(ROOT, 0))  # the longest such suffix

    def read(self, tokens: Sequence[int]) -> None:
        """Read these tokens, in amortised constant time each."""
        for token in tokens:
            self.longest = self.automaton.step(self.longest, token)

    def matches(self) -> Iterator[Substring]:
        """Suffixes of the text read so far that occur in the automaton, longest first."""
        return self.automaton.suffixes(self.longest)

    def count(self, location: Substring) -> int:
        """How often a substring occurs in the automaton."""
        return self.automaton.count(location)

    def children(
        self, location: Substring, min_count: float = 0.0
    ) -> list[tuple[int, int, Substring]]:
        """(token, count, context) of what follows a context in the automaton."""
        return self.automaton.children(location, min_count)
