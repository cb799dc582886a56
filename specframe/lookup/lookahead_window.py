"""The window of guesses of lookahead decoding, which rides in the verify pass and makes n-grams.

Lookahead decoding (Fu et al., arXiv 2402.02057) solves the next W tokens by Jacobi iteration: each
pass predicts every guess anew from the guesses of the passes before. The last N - 1 iterations are
the levels of the window, so the tokens of one column through all levels, with the prediction that
follows them, are an n-gram that the model itself wrote. W such n-grams go to the pool a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.lookup.ngram_pool import Phrase
from specframe.types import AuxRows


class LookaheadWindow:
    """Up to N - 1 levels of W tokens that ride in a pass; the root is the first one of level 0.

    Token (l, i), at position root + l + i, sees the prefix, level 0 up to i, and column i of the
    levels between. Level 0 starts with tokens spread over `text`. Each pass adds a level; once
    there are N - 1 levels, it ends W n-grams instead and the levels move up.
    """

    def __init__(self, *, width: int, ngram: int, text: Sequence[int]) -> None:
        self.width = width  # W
        self.ngram = ngram  # N
        self.levels = [[text[place * len(text) // width] for place in range(width)]]

    @property
    def num_rows(self) -> int:
        """The number of tokens of all levels, without the root."""
        return len(self.levels) * self.width - 1

    def rows(self, *, position: int, num_rows: int, seen: int, device: torch.device) -> AuxRows:
        """The window as auxiliary rows of a pass.

        The draft beside it has `num_rows` rows, and each token of the window sees the first `seen`
        of them. position: of the root, which is the last of those that are seen.
        """
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

    def advance(self, root: int, predicted: Sequence[int]) -> list[Phrase]:
        """Add the level [W] that the last one predicts; returns the n-grams that it ends."""
        self.levels[0][0] = root
        full = len(self.levels) == self.ngram - 1
        ended = list(zip(*self.levels, predicted, strict=True)) if full else []
        self.levels = [*self.levels[full:], list(predicted)]
        return ended


def window_pattern(num_levels: int, width: int) -> Tensor:
    """[L W, L W] bool: which tokens of a window see which, level by level, the root among them."""
    level = torch.arange(num_levels).repeat_interleave(width)
    column = torch.arange(width).repeat(num_levels)
    base = (level == 0) & (column <= column[:, None])
    own = (column == column[:, None]) & (level <= level[:, None])
    return base | own
