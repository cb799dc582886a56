"""A datastore to retrieve from: a suffix array over a corpus, built once and stored on the disk.

The suffixes of the corpus are sorted by their first `SORTED_TOKENS` tokens, so all suffixes that
begin with a given context form one range: its length is the count of the context, and the tokens
that follow lie in it in order. A context is found in O(length * log n). The array takes eight bytes
a token and is memory-mapped, so opening it takes no time whatever its size; a suffix automaton of
the same corpus would take some hundred bytes a token and seconds to build in every process.
Manber and Myers, Suffix arrays (1993), built by prefix doubling; REST (arXiv 2311.08252) drafts so.
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
from typing import ClassVar

import numpy as np

from specframe.prompts.corpus import SEPARATOR, Corpus
from specframe.storage.cache_folder import cache_root
from specframe.storage.digests import is_unchanged, seal
from specframe.target.base import Target

# How many tokens of a suffix the order looks at: the longest context and continuation together.
SORTED_TOKENS = 128
_FORMAT = 1  # of the stored tables
_GATHERED = 4096  # at most so many suffixes of a range are read at once
_TABLES = ("tokens", "order")


@dataclass(frozen=True, slots=True)
class SuffixRange:
    """The suffixes order[low:high], which share their first `length` tokens."""

    low: int
    high: int
    length: int


class Datastore:
    """The suffix array of a corpus."""

    shared_by_lanes: ClassVar[bool] = True

    def __init__(self, tokens: np.ndarray, order: np.ndarray) -> None:
        """tokens [n + SORTED_TOKENS] int32: ids, with -1 between documents and past the end.

        order [m] int32: where the suffixes that begin with a token start, in sorted order.
        """
        # Plain views, since scalar access to a memory map is slow.
        self.tokens, self.order = np.asarray(tokens), np.asarray(order)

    @classmethod
    def build(cls, ids: np.ndarray) -> Datastore:
        """Sort the suffixes of a corpus, given by its ids [n] with -1 between documents."""
        tokens = np.full(len(ids) + SORTED_TOKENS, SEPARATOR, dtype=np.int32)
        tokens[: len(ids)] = ids
        _, rank = np.unique(tokens, return_inverse=True)
        rank = rank.astype(np.int64)
        order = np.argsort(rank, kind="stable")
        span = 1
        while span < SORTED_TOKENS:
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

    def find(self, context: Sequence[int]) -> SuffixRange | None:
        """The suffixes that begin with a context, None if it does not occur."""
        span = SuffixRange(0, len(self.order), 0)
        for at, token in enumerate(context):
            if span.high - span.low == 1:
                start = int(self.order[span.low])
                following = self.tokens[start + at : start + len(context)]
                equal = following.tolist() == list(context[at:])
                return SuffixRange(span.low, span.high, len(context)) if equal else None
            narrowed = self._narrowed(span, token)
            if narrowed is None:
                return None
            span = narrowed
        return span

    def query(self, context: Sequence[int]) -> DatastoreQuery:
        """Match the end of `context`, at most its last SORTED_TOKENS // 2 tokens."""
        return DatastoreQuery(self, list(context[-SORTED_TOKENS // 2 :]))

    def count(self, location: SuffixRange) -> int:
        """How often a context occurs."""
        return location.high - location.low

    def children(
        self, location: SuffixRange, min_count: float = 0.0
    ) -> list[tuple[int, int, SuffixRange]]:
        """(token, count, location) of each token that follows at least `min_count` times.

        Every count is exact. In a long range, only tokens that an even sample of it shows are
        counted, so a rare one may be missing.
        """
        size, length = self.count(location), location.length
        if length >= SORTED_TOKENS:
            return []  # nothing is sorted there
        if size > _GATHERED:
            sampled = location.low + np.arange(_GATHERED) * size // _GATHERED
            seen = np.unique(self.tokens[self.order[sampled] + length])
            parts = [self._narrowed(location, int(token)) for token in seen if token != SEPARATOR]
            ranges = [part for part in parts if part is not None]
        else:
            column = self.tokens[self.order[location.low : location.high] + length]
            cuts = np.flatnonzero(np.diff(column)) + 1
            bounds = [location.low, *(cuts + location.low).tolist(), location.high]
            ranges = [SuffixRange(low, high, length + 1) for low, high in pairwise(bounds)]
        children = [
            (int(self.tokens[self.order[child.low] + length]), self.count(child), child)
            for child in ranges
        ]
        return [child for child in children if child[0] != SEPARATOR and child[1] >= min_count]

    def _narrowed(self, span: SuffixRange, token: int) -> SuffixRange | None:
        """The part of a range in which `token` comes next, None if it never does."""
        low, high, depth = span.low, span.high, span.length
        if high - low <= _GATHERED:
            column = self.tokens[self.order[low:high] + depth]
            start, stop = np.searchsorted(column, (token, token + 1)).tolist()
        else:
            part = _Column(self, span)
            start = bisect_left(part, token)
            stop = bisect_right(part, token, lo=start)
        return SuffixRange(low + start, low + stop, depth + 1) if stop > start else None


@dataclass(frozen=True)
class _Column:
    """The tokens that come next in a range, read one by one, for a binary search."""

    datastore: Datastore
    span: SuffixRange

    def __len__(self) -> int:
        return self.span.high - self.span.low

    def __getitem__(self, index: int) -> int:
        store = self.datastore
        return int(store.tokens[store.order[self.span.low + index] + self.span.length])


@dataclass(frozen=True)
class DatastoreQuery:
    """A context that is looked up in a datastore."""

    datastore: Datastore
    context: list[int]

    def longest(self) -> SuffixRange | None:
        """The longest suffix of the context that occurs, None if not even its last token does."""
        context, match, short, long = self.context, None, 0, 1
        size = len(context)
        # Doubling, then halving: most matches are short.
        while short < min(long, size):
            span = self.datastore.find(context[size - min(long, size) :])
            if span is None:
                break
            match, short, long = span, min(long, size), 2 * long
        long = min(long, size + 1)
        while long - short > 1:
            middle = (short + long) // 2
            span = self.datastore.find(context[size - middle :])
            match, short, long = (match, short, middle) if span is None else (span, middle, long)
        return match

    def matches(self) -> Iterator[SuffixRange]:
        """Suffixes of the context that occur, longest first.

        A suffix is left out if it occurs exactly as often as a longer one that was given.
        """
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

    def count(self, location: SuffixRange) -> int:
        """How often a context occurs in the datastore."""
        return self.datastore.count(location)

    def children(
        self, location: SuffixRange, min_count: float = 0.0
    ) -> list[tuple[int, int, SuffixRange]]:
        """(token, count, location) of what follows a context in the datastore."""
        return self.datastore.children(location, min_count)


def open_datastore(corpus: str, target: Target) -> Datastore:
    """The datastore of drafter.corpus (see `Corpus`), from the disk if it was built before.

    It is stored under `datastore/` in the cache folder, named by a digest of the corpus file (and
    of the tokenizer, for text). Raises ConfigError if there is no such file, if it is no corpus, or
    if its ids are of another tokenizer.
    """
    documents = Corpus.of(corpus, target)
    folder = cache_root() / "datastore" / f"{documents.digest[:32]}-{_FORMAT}"
    stored = _load(folder)
    if stored is None:
        built = Datastore.build(documents.read())
        with suppress(OSError):  # without room or the right to write it is built anew each time
            _save(built, folder)
        return built
    documents.check_ids(int(stored.tokens[stored.order[-1]]))
    return stored


def _load(folder: Path) -> Datastore | None:
    files = [folder / f"{name}.npy" for name in _TABLES]
    if not all(is_unchanged(file) for file in files):
        return None
    try:
        return Datastore(*(np.load(file, mmap_mode="r") for file in files))
    except (OSError, ValueError, EOFError):
        return None


def _save(built: Datastore, folder: Path) -> None:
    """The folder appears whole or not at all, in place of one that could not be read; of two
    processes that save, the first one wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=folder.parent))
    try:
        for name in _TABLES:
            np.save(partial / f"{name}.npy", getattr(built, name))
            seal(partial / f"{name}.npy")
        if _load(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
