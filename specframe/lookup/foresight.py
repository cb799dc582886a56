"""What a source could draft in a step, as far as the host knows it before anything is drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specframe.lookup.trie import Trie
from specframe.types import Frontier, Proposal


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """One source of a drafter before a step.

    known: the tokens it would place, by weight, of a source that looks them up in emitted text;
    None where a network must run first. match_length: tokens at the context's end that it found
    again, None where it does not say. aux_rows: rows that it adds to a pass. expand: its own,
    whatever the drafter around it would pick.
    """

    source: str
    expand: Callable[[Frontier], Sequence[Proposal]]
    known: Trie | None = None
    match_length: int | None = None
    aux_rows: int = 0
