"""What lookahead decoding keeps: a pool of n-grams, and the window of guesses that fills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specframe.types import AuxRows

Phrase = tuple[int, ...]  # an n-gram without its first token


class Pool:
    """First token -> its `size` newest n-grams; one that comes again becomes the newest."""

    def __init__(self, *, size: int) -> None:
        self.size = size
        self._held: dict[int, dict[Phrase, None]] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def add(self, ngram: Sequence[int]) -> None:
        """Keep an n-gram; the oldest of its first token makes room."""
        held = self._held.setdefault(ngram[0], {})
        rest = tuple(ngram[1:])
        held.pop(rest, None)
        held[rest] = None
        if len(held) > self.size:
            del held[next(iter(held))]

    def after(self, token: int) -> list[Phrase]:
        """What may follow a token, newest first."""
        return list(reversed(self._held.get(token, {})))

    def correct(self, token: int, better: Mapping[Phrase, Phrase]) -> None:
        """Put other phrases in the places of some that follow a token; of equals the newer stays"""
        corrected: dict[Phrase, None] = {}
        for rest in self._held.get(token, {}):
            new = better.get(rest, rest)
            corrected.pop(new, None)
            corrected[new] = None
        if corrected:
            self._held[token] = corrected


class GuessWindow:
    """Up to N - 1 levels of W tokens that ride in a pass; the root is the first one of level 0.

    Token (l, i), at position root + l + i, sees the prefix, level 0 up to i, and column i of the
    levels between. Level 0 starts with tokens spread over `text`; each pass adds a level, and once
    there are N - 1 it ends W n-grams instead and the levels move up.
    """

    def __init__(self, *, width: int, ngram: int, text: Sequence[int]) -> None:
        self.width = width
        self.ngram = ngram
        self.levels = [[text[place * len(text) // width] for place in range(width)]]

    @property
    def num_rows(self) -> int:
        """Tokens of all levels but the root."""
        return len(self.levels) * self.width - 1

    def rows(self, *, position: int, num_rows: int, seen: int, device: torch.device) -> AuxRows:
        """The window beside a draft of `num_rows`, of which each token sees the first `seen`.

        position: of the root, the last row seen."""
        sees = torch.zeros((self.num_rows, num_rows + self.num_rows), dtype=torch.bool)
        sees[:, :seen] = True
        sees[:, num_rows:] = window_pattern(len(self.levels), self.width)[1:, 1:]
        places = [level + i for level in range(len(self.levels)) for i in range(self.width)]
        tokens = [token for level in self.levels for token in level]
        return AuxRows(
            tokens=torch.tensor(tokens[1:], device=device),
            positions=torch.tensor(places[1:], device=device) + position,
            sees=sees.to(device),
        )

    def advance(self, root: int, new: Sequence[int]) -> list[Phrase]:
        """Add the level [W] that the last one predicts; returns the n-grams that it ends."""
        self.levels[0][0] = root
        full = len(self.levels) == self.ngram - 1
        ended = list(zip(*self.levels, new, strict=True)) if full else []
        self.levels = [*self.levels[full:], list(new)]
        return ended


def window_pattern(num_levels: int, window: int) -> Tensor:
    """[L W, L W] bool: which tokens of a window see which, level by level, the root among them."""
    level = torch.arange(num_levels).repeat_interleave(window)
    column = torch.arange(window).repeat(num_levels)
    base = (level == 0) & (column <= column[:, None])
    own = (column == column[:, None]) & (level <= level[:, None])
    return base | own
