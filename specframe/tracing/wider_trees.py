"""The tree that a record of positions is made with, so that smaller trees can be cut from it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from specframe.tree.base import TreePolicy


@runtime_checkable
class WiderForTraces(Protocol):
    """A tree policy that has a wider one which grows the same draft."""

    def for_trace(self) -> TreePolicy:
        """The policy that also expands every node that a smaller tree of its kind would expand."""


def widened(tree: TreePolicy) -> TreePolicy:
    """The wider policy of a tree, if it has one; else the tree itself."""
    return tree.for_trace() if isinstance(tree, WiderForTraces) else tree
