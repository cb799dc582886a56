"""Which tree gives most tokens a millisecond, given what guesses and rows are worth and cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specframe.planning.cost_table import CostTable, RankTable
from specframe.planning.rank_paths import RankPath, Sequoia, best_first, worth


@dataclass(frozen=True, kw_only=True)
class TreeChoice:
    """A tree of rank paths (parents first; none: nothing is drafted) with its expected tokens a
    pass, the bonus included, and the milliseconds of its step, of which draft_ms are drafting."""

    paths: Sequence[RankPath]
    tokens: float
    ms: float
    draft_ms: float = 0.0

    @property
    def rows(self) -> int:
        """Rows of the verify pass, root included."""
        return 1 + len(self.paths)

    @property
    def speed(self) -> float:
        """Expected tokens a millisecond."""
        return self.tokens / self.ms


@dataclass(frozen=True, kw_only=True)
class TreeSpeeds:
    """The expected speeds of trees of one source, for contexts of one length.

    aux_rows: further rows that every pass has.

    right [D][K]: how often the guess of each rank is right where the path above it is. closed: an
    elder sibling always comes before, as where children are drawn. Of each size and depth the tree
    of most expected tokens is looked at: with `closed` by Sequoia's recursion (arXiv 2402.12374),
    else by taking the path of most worth each time. Their fastest is the fastest of all trees where
    a level costs the same for every width.
    """

    costs: CostTable
    source: str
    right: RankTable
    context: int
    closed: bool
    aux_rows: int = 0

    def fastest(self, *, rows: int, depth: int) -> TreeChoice:
        """The fastest tree of up to `rows` rows and `depth` levels; smaller ones win ties."""
        return max(self.sizes(rows=rows, depth=depth), key=lambda one: (one.speed, -one.rows))

    def by_rows(self, *, rows: int, depth: int) -> dict[int, TreeChoice]:
        """The fastest tree of each number of rows."""
        found: dict[int, TreeChoice] = {}
        for one in self.sizes(rows=rows, depth=depth):
            best = found.get(one.rows)
            if best is None or one.speed > best.speed:
                found[one.rows] = one
        return dict(sorted(found.items()))

    def sizes(self, *, rows: int, depth: int) -> Iterator[TreeChoice]:
        """The tree of most tokens for each size and depth, the bare root first."""
        yield TreeChoice(paths=(), tokens=1.0, ms=self._step_ms(1))
        for deepest in range(1, min(depth, len(self.right)) + 1):
            table = self.right[:deepest]
            if self.closed:
                recursion = Sequoia(table, max_paths=rows - 1)
                for size in range(1, rows):
                    paths = recursion.paths(size)
                    if len(paths) == size:
                        yield self._choice(paths, 1 + sum(worth(table, path) for path in paths))
                continue
            order, tokens = best_first(table, max_paths=rows - 1, closed=False), 1.0
            for size, path in enumerate(order, start=1):
                tokens += worth(table, path)
                yield self._choice(order[:size], tokens)

    def _choice(self, paths: Sequence[RankPath], tokens: float) -> TreeChoice:
        draft_ms = self.costs.draft_ms(self.source, level_widths(paths))
        ms = self._step_ms(1 + len(paths)) + draft_ms
        return TreeChoice(paths=paths, tokens=tokens, ms=ms, draft_ms=draft_ms)

    def _step_ms(self, rows: int) -> float:
        step_ms = self.costs.step_ms(rows + self.aux_rows, self.context)
        return step_ms + self.costs.lookup_ms


def level_widths(paths: Sequence[RankPath]) -> list[int]:
    """Nodes with children by depth, the root's level first."""
    inner = {path[:-1] for path in paths}
    deepest = max(map(len, paths), default=0)
    return [sum(len(path) == depth for path in inner) for depth in range(deepest)]
