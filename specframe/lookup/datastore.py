"""A datastore to retrieve from: a suffix array over a corpus, built once and kept on the disk.

The suffixes of the corpus are sorted by their first `SORTED` tokens, so that those which begin with
a given context are one range: its length is the count, and what follows lies in order. Eight bytes
a token on the disk, memory-mapped, so that opening takes no time whatever the size; an automaton of
the same corpus takes some hundred bytes a token and seconds to build in every process. A context is
found in O(length * log n). Manber and Myers, Suffix arrays (1993), built by prefix doubling.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from specframe.prompts.corpus import SEPARATOR, Corpus
from specframe.storage.cache_folder import cache_root
from specframe.target.base import Target

SORTED = 128  # tokens that the order looks at: longest context and continuation together
_FORMAT = 1
_GATHERED = 4096  # suffixes of a range that are looked at at once
_TABLES = ("tokens", "order")


@dataclass(frozen=True, slots=True)
class Span:
    """The suffixes order[low:high], which share their first `length` tokens."""

    low: int
    high: int
    length: int


class Datastore:
    """tokens: [n + SORTED] int32 ids, documents apart by -1, -1 past the end; order: the suffixes
    that begin with a token, sorted."""

    def __init__(self, tokens: np.ndarray, order: np.ndarray) -> None:
        # A plain view: scalar access to a memory map is slow.
        self.tokens, self.order = np.asarray(tokens), np.asarray(order)

    @classmethod
    def build(cls, ids: np.ndarray) -> Datastore:
        """Of the ids [n] of a corpus, -1 between documents."""
        tokens = np.full(len(ids) + SORTED, SEPARATOR, dtype=np.int32)
        tokens[: len(ids)] = ids
        _, rank = np.unique(tokens, return_inverse=True)
        rank = rank.astype(np.int64)
        order = np.argsort(rank, kind="stable")
        span = 1
        while span < SORTED:
            later = np.zeros_like(rank)
            later[:-span] = rank[span:]
            key = rank * len(tokens) + later
            order = np.argsort(key, kind="stable")
            steps = np.diff(key[order], prepend=key[order[:1]]) != 0
            rank = np.empty_like(rank)
            rank[order] = np.cumsum(steps)
            span *= 2
        return cls(tokens, order[tokens[order] != SEPARATOR].astype(np.int32))

    def __len__(self) -> int:
        return len(self.order)

    def find(self, context: Sequence[int]) -> Span | None:
        """Where a context occurs."""
        span = Span(0, len(self.order), 0)
        for at, token in enumerate(context):
            if span.high - span.low == 1:
                start = int(self.order[span.low])
                held = self.tokens[start + at : start + len(context)]
                equal = held.tolist() == list(context[at:])
                return Span(span.low, span.high, len(context)) if equal else None
            narrowed = self._narrowed(span, token)
            if narrowed is None:
                return None
            span = narrowed
        return span

    def query(self, context: Sequence[int]) -> Query:
        """What the end of `context` matches, its last SORTED // 2 tokens at most."""
        return Query(self, list(context[-SORTED // 2 :]))

    def count(self, span: Span) -> int:
        """How often a context occurs."""
        return span.high - span.low

    def children(self, span: Span, least: float = 0.0) -> list[tuple[int, int, Span]]:
        """(token, count, span) of what follows it at least `least` times. Of a long range, only the
        tokens that an even sample of it shows are counted (exactly)."""
        size = span.high - span.low
        if span.length >= SORTED:
            return []  # nothing is sorted there
        if size > _GATHERED:
            places = span.low + np.arange(_GATHERED) * size // _GATHERED
            seen = np.unique(self.tokens[self.order[places] + span.length])
            found = [self._narrowed(span, int(token)) for token in seen if token != SEPARATOR]
            spans = [one for one in found if one is not None]
        else:
            column = self.tokens[self.order[span.low : span.high] + span.length]
            cuts = np.flatnonzero(np.diff(column)) + 1
            bounds = [span.low, *(cuts + span.low).tolist(), span.high]
            length = span.length + 1
            spans = [Span(a, b, length) for a, b in pairwise(bounds)]
        known = [
            (int(self.tokens[self.order[s.low] + span.length]), s.high - s.low, s) for s in spans
        ]
        return [one for one in known if one[0] != SEPARATOR and one[1] >= least]

    def _narrowed(self, span: Span, token: int) -> Span | None:
        """The part of a span in which `token` comes next."""
        low, high, depth = span.low, span.high, span.length
        if high - low <= _GATHERED:
            column = self.tokens[self.order[low:high] + depth]
            start, stop = np.searchsorted(column, (token, token + 1)).tolist()
        else:
            part = _Column(self, span)
            start = bisect_left(part, token)
            stop = bisect_right(part, token, lo=start)
        return Span(low + start, low + stop, depth + 1) if stop > start else None


@dataclass(frozen=True)
class _Column:
    """What comes next in a span, looked at one by one."""

    datastore: Datastore
    span: Span

    def __len__(self) -> int:
        return self.span.high - self.span.low

    def __getitem__(self, index: int) -> int:
        store = self.datastore
        return int(store.tokens[store.order[self.span.low + index] + self.span.length])


@dataclass(frozen=True)
class Query:
    """The end of a text in a datastore."""

    datastore: Datastore
    context: list[int]

    def longest(self) -> Span | None:
        """The longest suffix of the context that occurs."""
        context, found, short, long = self.context, None, 0, 1
        size = len(context)
        # Doubling, then halving: most matches are short.
        while short < min(long, size):
            span = self.datastore.find(context[size - min(long, size) :])
            if span is None:
                break
            found, short, long = span, min(long, size), 2 * long
        long = min(long, size + 1)
        while long - short > 1:
            middle = (short + long) // 2
            span = self.datastore.find(context[size - middle :])
            found, short, long = (found, short, middle) if span is None else (span, middle, long)
        return found

    def matches(self) -> Iterator[Span]:
        """Suffixes of the context that occur, longest first; those that occur as often as a longer
        one are left out."""
        span, size = self.longest(), len(self.context)
        while span is not None:
            yield span
            longer, span = span, None
            low, high = 1, longer.length  # where the next one's length lies
            while low < high:
                middle = (low + high) // 2
                shorter = self.datastore.find(self.context[size - middle :])
                assert shorter is not None
                if self.count(shorter) > self.count(longer):
                    span, low = shorter, middle + 1
                else:
                    high = middle

    def count(self, place: Span) -> int:
        """As the datastore's."""
        return self.datastore.count(place)

    def children(self, place: Span, least: float = 0.0) -> list[tuple[int, int, Span]]:
        """As the datastore's."""
        return self.datastore.children(place, least)


def open_datastore(word: str, target: Target) -> Datastore:
    """That of drafter.corpus (see `Corpus`), from the disk if it was built before.

    Kept under `datastore/` in the cache of models, by the digest of the file (and of the tokenizer,
    for text). Raises ConfigError: no such file, another tokenizer, not a corpus.
    """
    corpus = Corpus.of(word, target)
    folder = cache_root() / "datastore" / f"{corpus.digest[:32]}-{_FORMAT}"
    kept = _load(folder)
    if kept is None:
        built = Datastore.build(corpus.read())
        with suppress(OSError):  # no room or no right to write: it is built anew each time
            _save(built, folder)
        return built
    corpus.check_ids(int(kept.tokens[kept.order[-1]]))
    return kept


def _load(folder: Path) -> Datastore | None:
    try:
        tables = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in _TABLES)
        return Datastore(*tables)
    except (OSError, ValueError):
        return None


def _save(built: Datastore, folder: Path) -> None:
    """Whole or not at all; of two processes one wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=folder.parent))
    try:
        for name in _TABLES:
            np.save(partial / f"{name}.npy", getattr(built, name))
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
