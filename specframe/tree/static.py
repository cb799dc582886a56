"""A tree of fixed shape: rank paths, chosen in advance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from specframe.capture.purity import pure
from specframe.drafting.builder import TreeBuilder
from specframe.drafting.rank_tree import RankPath, grow_ranks
from specframe.heads.shipped import local_path
from specframe.tree.base import (
    TREES,
    Depth,
    MaxNodes,
    ProposalKind,
    Source,
    TreePolicy,
)
from specframe.types import Budget


@pure
@TREES.register("static")
class StaticTree(TreePolicy):
    """Each path lists ranks from the root: [0, 2] is the third child of the first child.

    paths: a list of rank paths, or a JSON file that holds one. Those longer than `depth` are left
    out, then those at the end of the list that `max_nodes` has no row for; what is kept keeps its
    parents. When children are drawn, rank is the order of the draw. Several sources take the ranks
    in turn, each with its own law.
    Decides before any draw. Papers: Medusa, arXiv 2401.10774; EAGLE, arXiv 2401.15077.
    """

    def __init__(
        self,
        *,
        depth: Depth,
        max_nodes: MaxNodes,
        proposal: ProposalKind,
        paths: list[list[int]] | str,
    ) -> None:
        super().__init__(depth=depth, max_nodes=max_nodes, proposal=proposal)
        listed, closed = read_paths(paths), proposal not in ("auto", "place")
        self.paths = validate(listed, closed=closed)
        self._by_worth = elders_first(listed, closed=closed)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        deepest = min(self.depth, budget.depth)
        room = min(self.max_nodes, budget.rows) - 1
        paths = [path for path in self._by_worth if len(path) <= deepest][: max(room, 0)]
        grow_ranks(builder, source.expand, paths)


def read_paths(paths: list[list[int]] | str) -> list[RankPath]:
    """Rank paths from a list, or from a JSON file (a list, or an object with key `paths`).

    Raises ValueError naming the file, or the first entry that is no list of integers.
    """
    if isinstance(paths, str):
        paths = _from_file(paths)
    for path in paths:
        if not isinstance(path, list | tuple) or any(type(rank) is not int for rank in path):
            raise ValueError(f"tree.paths: {path} must be a list of ranks from 0, such as [0, 1]")
    return [tuple(path) for path in paths]


def _from_file(name: str) -> list[list[int]]:
    file = Path(local_path(name)).expanduser()
    if not file.is_file():
        raise ValueError(f"tree.paths={name}: no such file")
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"tree.paths={name}: not a JSON file ({error})") from error
    found = held.get("paths") if isinstance(held, dict) else held
    if not isinstance(found, list):
        raise ValueError(f"tree.paths={name}: expected a list of rank paths, or one under `paths`")
    return found


def elders_first(paths: Sequence[RankPath], *, closed: bool) -> list[RankPath]:
    """The paths in their order, each behind its parent (and its elder sibling, where `closed`)."""
    ordered: dict[RankPath, None] = {}

    def add(path: RankPath) -> None:
        if len(path) > 1:
            add(path[:-1])
        if closed and path[-1] > 0:
            add((*path[:-1], path[-1] - 1))
        ordered.setdefault(path)

    for path in paths:
        add(path)
    return list(ordered)


def validate(paths: Sequence[RankPath], *, closed: bool) -> list[RankPath]:
    """The paths in order of (length, ranks). Raises ValueError naming the first bad one.

    closed: every elder sibling must be there too (needed when ranks are draws).
    """
    if not paths:
        raise ValueError("tree.paths is empty; give at least [[0]], or use drafter=none")
    known = set(paths)
    for path in paths:
        shown = list(path)
        if not path or any(rank < 0 for rank in path):
            raise ValueError(f"tree.paths: {shown} must be a non-empty list of ranks from 0")
        if list(paths).count(path) > 1:
            raise ValueError(f"tree.paths: {shown} is listed twice")
        if len(path) > 1 and path[:-1] not in known:
            raise ValueError(f"tree.paths: {shown} has no parent; add {list(path[:-1])}")
        elder = (*path[:-1], path[-1] - 1)
        if closed and path[-1] > 0 and elder not in known:
            raise ValueError(
                f"tree.paths: {shown} is a later draw than {list(elder)}, which is missing; "
                "add it or use tree.proposal=place"
            )
    return sorted(paths, key=lambda path: (len(path), path))
