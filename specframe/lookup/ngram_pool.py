"""A pool of the newest n-grams by their first token, as lookahead decoding keeps them.

The n-grams come from the model itself (the lookahead window), from the prompt or from a draft
model. Those that begin with the root are proposed as branches; since a pool looks at the first
token alone, it offers continuations that no text so far has had (Fu et al., arXiv 2402.02057).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Phrase = tuple[int, ...]  # the tokens of an n-gram after its first one


class NgramPool:
    """First token -> its `size` newest n-grams; one that comes again becomes the newest."""

    def __init__(self, *, size: int) -> None:
        self.size = size
        self._phrases: dict[int, dict[Phrase, None]] = {}  # oldest first

    def __len__(self) -> int:
        return sum(map(len, self._phrases.values()))

    def add(self, ngram: Sequence[int]) -> None:
        """Add an n-gram; the oldest one of its first token makes room."""
        phrases = self._phrases.setdefault(ngram[0], {})
        phrase = tuple(ngram[1:])
        phrases.pop(phrase, None)
        phrases[phrase] = None
        if len(phrases) > self.size:
            del phrases[next(iter(phrases))]

    def after(self, token: int) -> list[Phrase]:
        """The phrases that may follow a token, newest first."""
        return list(reversed(self._phrases.get(token, {})))

    def correct(self, token: int, better: Mapping[Phrase, Phrase]) -> None:
        """Replace some of the phrases that follow a token by others.

        A new phrase takes the age of the old one; of two equal phrases the newer one stays.
        """
        corrected: dict[Phrase, None] = {}
        for phrase in self._phrases.get(token, {}):
            new = better.get(phrase, phrase)
            corrected.pop(new, None)
            corrected[new] = None
        if corrected:
            self._phrases[token] = corrected
