"""The file of an answer that trace=full writes: what was offered under which node, by position.

An answer is one file of arrays (.npz), written whole when it ends; `answers.jsonl` lists them. All
calls, and all laws, of an answer lie behind each other in flat arrays of few dtypes, with a row of
sizes for each of them, so that a file of many small trees stays small and loads at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specframe.errors import ConfigError, describe_error
from specframe.storage.arrays import read_arrays
from specframe.storage.whole_files import whole_file

ANSWERS_FILE = "answers.jsonl"  # one line an answer, see trace/README.md
POSITIONS_FOLDER = "positions"
UNKNOWN_TOKEN = -2  # a guess that the traced tree did not ask for, so nobody knows its token
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """Children that were made together: K under each of F nodes of one depth, best first.

    Node ids are those of the step; the root is 0.
    """

    depth: int  # of the parents
    source: str  # what offered the children, "" where the drafter has a single source
    width: int  # children that it offered under each parent
    parents: Ints  # [F] node ids
    nodes: Ints  # [F, K] node ids
    tokens: Ints  # [F, K], -1 where there is none, UNKNOWN_TOKEN where it was not asked for
    # [F, K] log-weights, None where the rank alone decides. Of a drafter with a law they are its
    # log-probabilities, and what they leave of 1 is the mass of all other tokens.
    scores: Floats | None

    def facts(self) -> tuple[int, ...]:
        """(depth, width, F, K, 1 where there are scores): what flat arrays do not say."""
        return self.depth, self.width, *self.tokens.shape, int(self.scores is not None)


@dataclass(frozen=True, kw_only=True)
class TracedLaws:
    """The target's law at the n verified nodes of a position."""

    nodes: Ints  # [n] node ids, parents first
    parents: Ints  # [n] node ids, -1 for the root
    probs: Floats  # [n] of each node's token by the law at its parent, NaN for the root
    ids: Ints  # [n, k] the likeliest tokens
    top: Floats  # [n, k] their probabilities
    tail: Floats  # [n] what these leave of 1


@dataclass(frozen=True, kw_only=True)
class TracedPosition:
    """A position of an answer: what could be drafted there, and how likely the target held it."""

    calls: list[TracedCall]
    laws: TracedLaws


@dataclass
class TracedAnswer:
    """The traced positions of one answer, in order."""

    positions: list[TracedPosition] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file, which appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self._arrays())

    def _arrays(self) -> dict[str, Any]:
        calls = [(i, call) for i, each in enumerate(self.positions) for call in each.calls]
        laws = [each.laws for each in self.positions]
        sources = sorted({call.source for _, call in calls})
        facts = [[i, *call.facts(), sources.index(call.source)] for i, call in calls]
        scored = [call.scores for _, call in calls if call.scores is not None]
        return {
            "calls": np.array(facts, dtype=np.int64).reshape(-1, 7),
            "sources": np.array(sources, dtype=np.str_),
            "parents": _flat([call.parents for _, call in calls], np.int32),
            "nodes": _flat([call.nodes for _, call in calls], np.int32),
            "tokens": _flat([call.tokens for _, call in calls], np.int32),
            "scores": _flat(scored, np.float64),
            "law_counts": np.array([len(each.nodes) for each in laws], dtype=np.int64),
            "law_nodes": _flat([each.nodes for each in laws], np.int32),
            "law_parents": _flat([each.parents for each in laws], np.int32),
            "law_probs": _flat([each.probs for each in laws], np.float64),
            "law_ids": _flat([each.ids for each in laws], np.int32),
            "law_top": _flat([each.top for each in laws], np.float32),
            "law_tail": _flat([each.tail for each in laws], np.float32),
        }


def read_positions(path: Path) -> list[TracedPosition]:
    """The positions of a file. Raises ConfigError if it is no file of traced positions."""
    arrays = read_arrays(path, (), place=str(path), contents="positions of trace=full")
    try:
        calls = _calls(arrays)
        positions = [TracedPosition(calls=[], laws=each) for each in _laws(arrays)]
        for index, call in calls:
            positions[index].calls.append(call)
    except Exception as error:  # arrays of any shape and type may raise anything
        reason = describe_error(error)
        raise ConfigError(f"{path}: not positions of trace=full ({reason})") from None
    return positions


def _calls(arrays: dict[str, NDArray[np.generic]]) -> list[tuple[int, TracedCall]]:
    """(index of the position, call) of all calls."""
    calls, sources = [], [str(name) for name in arrays["sources"]]
    parents, nodes, tokens = (_FlatArray(arrays[name]) for name in ("parents", "nodes", "tokens"))
    scores = _FlatArray(arrays["scores"])
    for index, depth, width, f, k, scored, source in arrays["calls"].tolist():
        call = TracedCall(
            depth=depth,
            source=sources[source],
            width=width,
            parents=parents.integers(f),
            nodes=nodes.integers(f, k),
            tokens=tokens.integers(f, k),
            scores=scores.numbers(f, k) if scored else None,
        )
        calls.append((index, call))
    return calls


def _laws(arrays: dict[str, NDArray[np.generic]]) -> Iterator[TracedLaws]:
    names = ("nodes", "parents", "probs", "ids", "top", "tail")
    readers = {name: _FlatArray(arrays[f"law_{name}"]) for name in names}
    total = int(arrays["law_counts"].sum())
    k = arrays["law_ids"].size // max(total, 1)
    for count in arrays["law_counts"].tolist():
        yield TracedLaws(
            nodes=readers["nodes"].integers(count),
            parents=readers["parents"].integers(count),
            probs=readers["probs"].numbers(count),
            ids=readers["ids"].integers(count, k),
            top=readers["top"].numbers(count, k),
            tail=readers["tail"].numbers(count),
        )


class _FlatArray:
    """Takes arrays of given shapes off a flat one, one after the other."""

    def __init__(self, values: NDArray[np.generic]) -> None:
        self._values = values.reshape(-1)
        self._start = 0  # of what was not taken yet

    def integers(self, *shape: int) -> Ints:
        return self._take(shape).astype(np.int64)

    def numbers(self, *shape: int) -> Floats:
        return self._take(shape).astype(np.float64)

    def _take(self, shape: Sequence[int]) -> NDArray[np.generic]:
        stop = self._start + int(np.prod(shape))
        taken = self._values[self._start : stop].reshape(shape)
        self._start = stop
        return taken


def _flat(parts: Sequence[NDArray[np.generic]], dtype: type) -> NDArray[np.generic]:
    empty: NDArray[np.generic] = np.zeros(0, dtype=dtype)
    return np.concatenate([empty, *(part.reshape(-1).astype(dtype) for part in parts)])
