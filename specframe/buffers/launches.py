"""What buffers ask of a launch beyond its contract: passes of few widths, fixed addresses."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class WidePasses(Protocol):
    """A launch that wants passes of few widths, since each width is a function of its own."""

    one_width: bool  # a function serves one width; False: the slots allocated are no fixed size

    def columns(self, needed: int, allocated: int) -> int:
        """Slots that a pass shall see: at least `needed`, at most `allocated`."""


@runtime_checkable
class FixedAddresses(Protocol):
    """A launch that captures what it wraps: buffers stay in place, and copies go through it."""

    captures: bool


def wide_passes(launch: object) -> WidePasses | None:
    return launch if isinstance(launch, WidePasses) else None


def fixed_addresses(launch: object) -> FixedAddresses | None:
    return launch if isinstance(launch, FixedAddresses) else None
