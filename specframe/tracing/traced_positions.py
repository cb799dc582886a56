"""What trace=full keeps of an answer: at every position what was offered under which node.

An answer is one file of arrays (.npz), written whole when it ends; `answers.jsonl` lists them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from specframe.errors import ConfigError

ANSWERS_FILE = "answers.jsonl"
POSITIONS_FOLDER = "positions"
UNKNOWN_TOKEN = -2  # a place that the recorded tree left out, so that nobody knows its token
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """Children that were made together: K under each of F nodes of a depth, best first.

    parents [F] and nodes [F, K] are node ids, root 0; tokens [F, K] (-1 none, -2 not asked for);
    scores [F, K] log-weights, None where rank decides; of a drafter with a law they are its
    log-probabilities, and what they leave of 1 is its tail. width: children that it offered.
    """

    depth: int
    source: str
    width: int
    parents: Ints
    nodes: Ints
    tokens: Ints
    scores: Floats | None

    def facts(self) -> tuple[int, ...]:
        """Depth, width, F, K, and whether there are scores."""
        return self.depth, self.width, *self.tokens.shape, int(self.scores is not None)


@dataclass(frozen=True, kw_only=True)
class TracedLaws:
    """The target's law at the verified nodes. nodes [n] ids, parents first, root 0; parents [n]
    ids; probs [n] of each node's token by the law at its parent (NaN for the root); ids and top
    [n, k] the likeliest tokens, tail [n] what they leave."""

    nodes: Ints
    parents: Ints
    probs: Floats
    ids: Ints
    top: Floats
    tail: Floats


@dataclass(frozen=True, kw_only=True)
class TracedPosition:
    """One place of an answer: what could be drafted there, and what the target thought of it."""

    calls: list[TracedCall]
    laws: TracedLaws


@dataclass
class TracedAnswer:
    """The positions of one answer, in order."""

    positions: list[TracedPosition] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self._arrays())
        os.replace(partial, path)

    def _arrays(self) -> dict[str, Any]:
        calls = [(i, call) for i, one in enumerate(self.positions) for call in one.calls]
        laws = [one.laws for one in self.positions]
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
            "law_counts": np.array([len(one.nodes) for one in laws], dtype=np.int64),
            "law_nodes": _flat([one.nodes for one in laws], np.int32),
            "law_parents": _flat([one.parents for one in laws], np.int32),
            "law_probs": _flat([one.probs for one in laws], np.float64),
            "law_ids": _flat([one.ids for one in laws], np.int32),
            "law_top": _flat([one.top for one in laws], np.float32),
            "law_tail": _flat([one.tail for one in laws], np.float32),
        }


def read_positions(path: Path) -> list[TracedPosition]:
    """The positions of a file. Raises ConfigError if it is none."""
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        calls = _calls(arrays)
        laws = list(_laws(arrays))
    except (OSError, EOFError, ValueError, KeyError, IndexError, BadZipFile, zlib.error) as error:
        raise ConfigError(f"{path}: not positions of trace=full ({error})") from None
    found = [TracedPosition(calls=[], laws=one) for one in laws]
    for place, call in calls:
        found[place].calls.append(call)
    return found


def _calls(arrays: dict[str, NDArray[np.generic]]) -> list[tuple[int, TracedCall]]:
    found, sources = [], [str(one) for one in arrays["sources"]]
    parents, nodes, tokens = (_Reader(arrays[name]) for name in ("parents", "nodes", "tokens"))
    scores = _Reader(arrays["scores"])
    for place, depth, width, f, k, scored, source in arrays["calls"].tolist():
        call = TracedCall(
            depth=depth,
            source=sources[source],
            width=width,
            parents=parents.integers(f),
            nodes=nodes.integers(f, k),
            tokens=tokens.integers(f, k),
            scores=scores.numbers(f, k) if scored else None,
        )
        found.append((place, call))
    return found


def _laws(arrays: dict[str, NDArray[np.generic]]) -> Iterator[TracedLaws]:
    names = ("nodes", "parents", "probs", "ids", "top", "tail")
    readers = {name: _Reader(arrays[f"law_{name}"]) for name in names}
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


class _Reader:
    """Takes shapes off a flat array, one after the other."""

    def __init__(self, values: NDArray[np.generic]) -> None:
        self._values = values.reshape(-1)
        self._start = 0

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
