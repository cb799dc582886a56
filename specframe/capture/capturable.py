"""What a drafter tells of a step's drafting, so that a captured function can run it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specframe.types import Frontier, Proposal, Tensors

Expand = Callable[[Frontier], Sequence[Proposal]]


@dataclass(frozen=True, kw_only=True)
class CapturableDraft:
    """One step's drafting as a function of tensors: source(inputs, buffers) gives its `expand`."""

    inputs: Tensors  # what differs between steps
    buffers: Tensors  # what the network may write into (see `Launch.wrap`)
    key: Hashable  # fixes whatever else `expand` reads
    source: Callable[[Tensors, Tensors], Expand]


@runtime_checkable
class Capturable(Protocol):
    """A drafter whose step can be captured as a function of tensors."""

    def capturable(self, max_expanded: int) -> CapturableDraft | None:
        """This step's drafting, in which at most `max_expanded` nodes are expanded.

        `expand` is not called in that step, and what it would have stored must not be missed.
        None: this step is more than a function of tensors.
        """
