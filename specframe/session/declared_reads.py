"""Waits for the device that components declare, beyond the one read of each step."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from specframe.components import Components
from specframe.law.sampling import Sampling


@runtime_checkable
class ReadsHost(Protocol):
    """An acceptance rule that waits for the device beyond the step's own read."""

    def host_reads(self, path_dependent: bool) -> int:
        """Waits of one decision, under processors that depend on the path or not."""


def host_reads(parts: Components, sampling: Sampling) -> dict[str, int]:
    """Of drafter, tree and accept in a step; of sampling in each call of the processors."""
    rule, by_path = parts.accept, sampling.path_dependent
    return {
        "drafter": parts.drafter.traits.host_reads,
        "tree": parts.tree.host_reads,
        "accept": rule.host_reads(by_path) if isinstance(rule, ReadsHost) else 0,
        "sampling": sampling.host_reads,
    }
