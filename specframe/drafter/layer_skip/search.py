"""Which sub-layers to leave out: names, an even set to start with, and a search for a better one.

A sub-layer is "attention:i" or "mlp:i" of block i, as `Target.forward(skip=...)` takes them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

_KAPPA = 2.5  # upper confidence bound: mean + kappa * deviation (as in SWIFT's code)
_NOISE = 1e-2  # variance of a score (as in SWIFT's code)
_CANDIDATES = 64  # random sets that a Bayesian try chooses from
_REMEMBERED = 128  # latest scores that it learns from; bounds its cost


def inner_parts(num_blocks: int) -> list[str]:
    """Sub-layers of all blocks but the first and the last, which are never searched over."""
    blocks = range(1, num_blocks - 1)
    return [f"{part}:{block}" for block in blocks for part in ("attention", "mlp")]


def evenly(num_blocks: int, ratio: float) -> frozenset[str]:
    """Whole inner blocks, `ratio` of them (one at least if it is not 0), at even distances."""
    inner = max(num_blocks - 2, 0)
    count = min(max(round(ratio * inner), int(ratio > 0)), inner)
    blocks = [1 + int((place + 0.5) * inner / count) for place in range(count)]
    return frozenset(f"{part}:{block}" for block in blocks for part in ("attention", "mlp"))


class SkipSearch:
    """Tries sets of `size` of `parts` and keeps the one of the highest score in [0, 1].

    A try is a random set; each `bayes_every`-th one (0: none) is the random set that a Gaussian
    process over the scores so far finds most promising. It ends after `tries` scores, or with a
    set that matches everything. The same seed and scores give the same sets.
    """

    def __init__(
        self,
        *,
        parts: Iterable[str],
        start: frozenset[str],
        tries: int,
        bayes_every: int,
        seed: int,
    ) -> None:
        self.best, self.best_score = start, -1.0
        self._parts = list(parts)
        self._size = min(len(start), len(self._parts))
        self._left = tries if self._size else 0
        self._bayes_every = bayes_every
        self._random = random.Random(seed)
        self._seen: list[tuple[frozenset[str], float]] = []

    @property
    def num_scores(self) -> int:
        """Sets that were tried so far."""
        return len(self._seen)

    def next(self) -> frozenset[str] | None:
        """The set to try, None when the search is over; the one it starts from comes first."""
        if not self._left or self.best_score >= 1:
            return None
        if not self._seen:
            return self.best
        turn = self._bayes_every and len(self._seen) % self._bayes_every == 0
        return self._promising() if turn else self._drawn()

    def tell(self, tried: frozenset[str], score: float) -> None:
        """Note a score; a set must beat the best one to replace it."""
        self._left -= 1
        self._seen.append((tried, score))
        if score > self.best_score:
            self.best, self.best_score = tried, score

    def _drawn(self) -> frozenset[str]:
        return frozenset(self._random.sample(self._parts, self._size))

    def _promising(self) -> frozenset[str]:
        """The best of some random sets by upper confidence bound."""
        sets = [self._drawn() for _ in range(_CANDIDATES)]
        seen = self._seen[-_REMEMBERED:]
        known, new = self._vectors(one for one, _ in seen), self._vectors(sets)
        scores = np.array([score for _, score in seen])
        gram = self._kernel(known, known) + _NOISE * np.eye(len(known))
        cross = self._kernel(new, known)  # [C, n]
        solved = np.linalg.solve(gram, np.column_stack([scores - scores.mean(), cross.T]))
        spread = np.maximum(1 - (cross * solved[:, 1:].T).sum(1), 0) ** 0.5
        return sets[int((cross @ solved[:, 0] + _KAPPA * spread).argmax())]

    def _vectors(self, sets: Iterable[frozenset[str]]) -> np.ndarray:
        """[n, parts] 1.0 where a part is left out."""
        return np.array([[part in one for part in self._parts] for one in sets], dtype=float)

    def _kernel(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """exp(-differing parts / size): 1 for equal sets."""
        differing = np.abs(left[:, None] - right[None]).sum(-1)
        return np.exp(-differing / self._size)
