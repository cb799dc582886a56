"""What a source could draft in a step, as far as the host knows it before anything is drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from specframe.lookup.trie import Trie
from specframe.types import Frontier, Proposal


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """One source of a drafter before a step, for a tree that chooses among sources."""

    source: str
    # Proposes from this source alone, whatever the drafter around it would pick.
    expand: Callable[[Frontier], Sequence[Proposal]]
    # The tokens that it would place, by weight, of a source that looks them up in emitted text;
    # None where a network must run first.
    known: Trie | None = None
    # How many tokens at the end of the context it found again; None where it does not say.
    match_length: int | None = None
    aux_rows: int = 0  # auxiliary rows that it adds to a verify pass


@runtime_checkable
class Foresees(Protocol):
    """A drafter that knows on the host what its sources could draft, as look-ups do."""

    def prospects(self) -> Sequence[Prospect]:
        """What each of its sources could draft now; nothing is drafted."""


@runtime_checkable
class MeasuresMatch(Protocol):
    """A drafter that looks the end of the context up."""

    @property
    def match_length(self) -> int:
        """Tokens at the context's end that it found elsewhere."""


def prospects_of(drafter: Any) -> Sequence[Prospect]:
    """What a drafter could draft now. One that foresees nothing has a single source, itself."""
    if isinstance(drafter, Foresees):
        return drafter.prospects()
    word, needs = type(drafter).__name__.lower(), drafter.traits.needs
    return [Prospect(source=word, expand=drafter.expand, aux_rows=needs.aux_rows)]


def match_length_of(drafter: Any) -> int | None:
    """Tokens at the context's end that a drafter found elsewhere; None: it looks nothing up."""
    return drafter.match_length if isinstance(drafter, MeasuresMatch) else None
