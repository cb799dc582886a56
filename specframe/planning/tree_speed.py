"""Which tree gives the most tokens a millisecond, given what guesses are worth and rows cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specframe.planning.cost_table import CostTable, RankTable
from specframe.planning.rank_paths import RankPath, Sequoia, best_first, worth


@dataclass(frozen=True, kw_only=True)
class TreeChoice:
    """A tree of rank paths with what is expected of its step."""

    paths: Sequence[RankPath]  # parents first; without any, nothing is drafted
    tokens: float  # expected of the verify pass, the bonus token included
    ms: float  # of the whole step
    draft_ms: float = 0.0  # of it for drafting

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

    For each size and depth one tree is looked at, that of most expected tokens: where siblings are
    `closed` by Sequoia's recursion (arXiv 2402.12374), else by taking the path of most worth each
    time. Their fastest is the fastest of all trees where a level costs the same for every width.
    """

    costs: CostTable
    source: str
    right: RankTable  # [D][K] how often the guess of each rank is right where the path above it is
    context: int  # cached tokens
    closed: bool  # an elder sibling always comes before, as where children are drawn
    aux_rows: int = 0  # further rows that every pass has

    def fastest(self, *, rows: int, depth: int) -> TreeChoice:
        """The fastest tree of up to `rows` rows and `depth` levels; smaller ones win ties."""
        return max(
            self.candidates(rows=rows, depth=depth), key=lambda tree: (tree.speed, -tree.rows)
        )

    def fastest_by_rows(self, *, rows: int, depth: int) -> dict[int, TreeChoice]:
        """The fastest tree of each number of rows."""
        fastest: dict[int, TreeChoice] = {}
        for tree in self.candidates(rows=rows, depth=depth):
            best = fastest.get(tree.rows)
            if best is None or tree.speed > best.speed:
                fastest[tree.rows] = tree
        return dict(sorted(fastest.items()))

    def candidates(self, *, rows: int, depth: int) -> Iterator[TreeChoice]:
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
    """How many nodes have children, by depth; the root's level comes first."""
    inner = {path[:-1] for path in paths}
    deepest = max(map(len, paths), default=0)
    return [sum(len(path) == depth for path in inner) for depth in range(deepest)]
