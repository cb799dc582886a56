"""How often a network's guesses are right in this sequence, starting from a calibrated table.

The table that was calibrated elsewhere is a prior: it counts like so many guesses that were judged
before, and what the verdicts of this sequence show is added to it (the mean of a Beta posterior).
So an unusual text corrects the table within some dozens of steps, and a few steps do not upset it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from specframe.planning.cost_table import RankTable
from specframe.planning.rank_paths import RankPath
from specframe.records import StepRecord

# A calibrated share weighs so many times what a look-up's prior does, as it is of this very source.
_WEIGHT = 8.0


class RankLearner:
    """Shares of right guesses by source, depth and rank: (w * prior + right) / (w + judged).

    A guess is judged where the verdict's path came to its parent; what was not drafted is not
    judged. w is eight times `weight`.
    """

    def __init__(self, prior: Mapping[str, RankTable], *, weight: float) -> None:
        self._prior = prior
        self._weight = _WEIGHT * weight
        self._judged: Counter[tuple[str, int, int]] = Counter()
        self._right: Counter[tuple[str, int, int]] = Counter()
        self._drafts: Counter[str] = Counter()

    def num_drafts(self, source: str) -> int:
        """In how many steps a source drafted."""
        return self._drafts[source]

    def table(self, source: str) -> list[list[float]]:
        """[D][K] the shares as they are now; empty for a source without a calibrated table."""
        return [
            [self._share(prior, (source, depth, rank)) for rank, prior in enumerate(row)]
            for depth, row in enumerate(self._prior.get(source, ()))
        ]

    def learn(self, source: str, rows: Sequence[RankPath], record: StepRecord) -> None:
        """Judge the draft of a step by its verdict.

        rows: the rank path of each row after the root, in row order.
        """
        self._drafts[source] += 1
        walked: list[RankPath] = [(), *(rows[row - 1] for row in record.path)]
        # A stop cut the verdict there, so nothing below was judged.
        last = len(walked) - 1 if record.was_cut else len(walked)
        for depth, path in enumerate(walked[:last]):
            for child in rows:
                if child[:-1] == path and len(child) == depth + 1:
                    key = (source, depth, child[-1])
                    self._judged[key] += 1
                    self._right[key] += depth + 1 < len(walked) and child == walked[depth + 1]

    def _share(self, prior: float, key: tuple[str, int, int]) -> float:
        weight = self._weight
        return (weight * prior + self._right[key]) / (weight + self._judged[key])
