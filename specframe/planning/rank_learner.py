"""How often a network's guesses are right in this sequence, starting from a calibrated table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from specframe.planning.cost_table import RankTable
from specframe.planning.rank_paths import RankPath
from specframe.records import StepRecord

_WEIGHT = 8.0  # a calibrated share counts as so many times the tokens that a look-up's prior does


class RankLearner:
    """Shares by source, depth and rank: (w prior + right) / (w + judged).

    A guess is judged where the walk stood on its parent; w is `weight` times eight, since shares of
    a table are of this very source. What was not drafted is not judged.
    """

    def __init__(self, prior: Mapping[str, RankTable], *, weight: float) -> None:
        self._prior = prior
        self._weight = _WEIGHT * weight
        self._judged: Counter[tuple[str, int, int]] = Counter()
        self._right: Counter[tuple[str, int, int]] = Counter()
        self._drafts: Counter[str] = Counter()

    def num_drafts(self, source: str) -> int:
        """Steps that it drafted."""
        return self._drafts[source]

    def table(self, source: str) -> list[list[float]]:
        """[D][K] as it is now; empty for a source without a table."""
        return [
            [self._share(prior, (source, depth, rank)) for rank, prior in enumerate(row)]
            for depth, row in enumerate(self._prior.get(source, ()))
        ]

    def learn(self, source: str, rows: Sequence[RankPath], record: StepRecord) -> None:
        """Judge a step's draft, whose rows after the root had these paths, by its verdict."""
        self._drafts[source] += 1
        walked: list[RankPath] = [(), *(rows[row - 1] for row in record.path)]
        # A stop cut the verdict there: what came below was not judged.
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
