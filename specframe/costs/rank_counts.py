"""Counts of how often the guess of each rank is right along a text that is known already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from specframe.planning.cost_table import RankTable
from specframe.planning.rank_paths import RankPath

MISS = -1  # the true token was not among the guesses


@dataclass
class RankCounts:
    """Outcomes at the positions of a text, where guesses were made down to `depth` levels.

    At each position the true tokens are followed down the draft: the rank of each among the guesses
    below the one before, until a token was not guessed (MISS).
    """

    depth: int  # D
    top_k: int  # K, guesses at each level
    # (ranks of the true tokens, MISS last if there was one; number of true tokens that were left
    # in the text) -> number of positions
    outcomes: Counter[tuple[RankPath, int]] = field(default_factory=Counter)

    def add(self, ranks: Sequence[int], num_left: int) -> None:
        """Count one position, behind which the text has `num_left` tokens (`depth` at most)."""
        self.outcomes[tuple(ranks), num_left] += 1

    @property
    def num_positions(self) -> int:
        """How many positions of the text were counted."""
        return self.outcomes.total()

    def reached(self) -> list[int]:
        """[D] positions where a guess of this depth was judged.

        It is judged where the text goes on so far and all tokens above were guessed at any rank.
        """
        counts = [0] * self.depth
        for (ranks, num_left), times in self.outcomes.items():
            num_right = len(ranks) - (MISS in ranks)
            for depth in range(min(num_right + 1, num_left)):
                counts[depth] += times
        return counts

    def hits(self) -> list[list[int]]:
        """[D][K] how often the guess of each rank was right."""
        counts = [[0] * self.top_k for _ in range(self.depth)]
        for (ranks, _), times in self.outcomes.items():
            for depth, rank in enumerate(ranks):
                if rank != MISS:
                    counts[depth][rank] += times
        return counts

    def table(self) -> list[list[float]]:
        """[D][K] hits / reached, 0 where nothing was reached."""
        pairs = zip(self.hits(), self.reached(), strict=True)
        return [[hit / max(reached, 1) for hit in row] for row, reached in pairs]

    def pooled(self) -> RankTable:
        """[D][K] the same row for all depths, pooled over them, as Sequoia assumes."""
        total = max(sum(self.reached()), 1)
        row = [sum(column) / total for column in zip(*self.hits(), strict=True)]
        return [row] * self.depth

    def counted_length(self, paths: Sequence[RankPath]) -> float:
        """Mean number of tokens that a verify pass over these paths would have emitted.

        It is counted over all positions, so unlike a product of the table it does not assume that
        depths are independent of each other.
        """
        known, emitted = set(paths), 0
        for (ranks, _), times in self.outcomes.items():
            right = [rank for rank in ranks if rank != MISS]
            depth = 0
            while depth < len(right) and tuple(right[: depth + 1]) in known:
                depth += 1
            emitted += times * (1 + depth)
        return emitted / max(self.num_positions, 1)
