"""What a source could draft in a step, as far as the host knows it before anything is drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
