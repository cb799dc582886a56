"""The frozen target's hidden states for every training sequence, made once and kept on disk.

One flat file of rows [W] (the taps side by side) in the order of the samples, up to a size limit;
what lies beyond is computed anew whenever it is asked for. What a caller gets was rounded to the
cache's dtype either way, so a run does not depend on what happened to be cached.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from specframe.cache.base import CACHES
from specframe.errors import ConfigError
from specframe.target.base import Target
from specframe.training.samples import TrainingSample
from specframe.types import Rows

PACK_ROWS = 512  # tokens of short sequences that go through the target together
_DATA, _RECORD = "features.bin", "features.json"


@dataclass(frozen=True, kw_only=True)
class Tapped:
    """Runs the frozen target over sequences. faster: a context in which its passes are quicker,
    for as long as nothing else is computed; original: one in which it has its own weights."""

    target: Target
    taps: tuple[str, ...]
    dtype: torch.dtype
    faster: Callable[[], AbstractContextManager[None]] = nullcontext
    original: Callable[[], AbstractContextManager[None]] = nullcontext

    @torch.no_grad()
    def rows(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        """[L, W] of each sample, all in one pass, rounded to the cache's dtype, on the CPU."""
        lengths = [len(sample) for sample in samples]
        device = self.target.device
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        owner = owner.to(device)
        cache = CACHES.get("dynamic")()
        cache.open(0, columns=sum(lengths), device=device)
        fresh = cache.reserve([sum(lengths)])
        visible = (owner[:, None] == owner) & (positions[:, None] >= positions)
        rows = Rows(
            tokens=torch.cat([sample.tokens for sample in samples]).to(device),
            positions=positions,
            slots=fresh.slots,
            prefix=torch.zeros_like(positions),
            sees=None if len(samples) == 1 else visible,
        )
        with self.original():
            found = self.target.forward(rows, cache, taps=self.taps).taps
        joined = torch.cat([found[name] for name in self.taps], dim=-1).to(self.dtype).cpu()
        if not bool(torch.isfinite(joined).all()):
            raise ConfigError(
                f"task.cache_dtype={str(self.dtype).removeprefix('torch.')}: a hidden state does "
                "not fit in it; use bfloat16 or float32"
            )
        return list(joined.split(lengths))


class Features:
    """Rows of the taps by sample.

    width: values of a row (W). identity: what else the rows depend on (the target's fingerprint).
    A file that was made for the same beginning of the samples is carried on, also one that has more
    taps than these: of it, ours are read.
    """

    def __init__(
        self,
        tapped: Tapped,
        samples: Sequence[TrainingSample],
        *,
        width: int,
        folder: Path,
        max_bytes: int,
        identity: Any,
    ) -> None:
        each, asked = width // len(tapped.taps), tapped.taps
        self._folder = folder
        self._identity = {"of": identity, "dtype": str(tapped.dtype), "each": each}
        self._tapped = replace(tapped, taps=self._taps_on_disk(asked))
        self._width = width = each * len(self._tapped.taps)
        first = [each * self._tapped.taps.index(name) for name in asked]
        self._columns = torch.cat([torch.arange(each) + start for start in first])
        size = torch.empty(0, dtype=tapped.dtype).element_size()
        self._cached: list[TrainingSample] = []
        self._offset: dict[int, int] = {}
        rows = 0
        for sample in samples:
            if (rows + len(sample)) * width * size > max_bytes:
                break
            self._offset[id(sample)] = rows
            self._cached.append(sample)
            rows += len(sample)
        self._rows = rows
        self._data: Tensor | None = None
        self._lock: IO[bytes] | None = None

    @property
    def num_cached(self) -> int:
        """Samples whose rows are (or will be) on disk."""
        return len(self._cached)

    def fill(self, tick: Callable[[int, int], None]) -> None:
        """Compute what is missing on disk. tick(done, all): called after every pass, in samples."""
        if not self._cached:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        digests = [_digest(sample) for sample in self._cached]
        self._hold(alone=False)
        done = self._kept(digests)
        if done < len(digests):
            self._hold(alone=True)
            with self._tapped.faster():
                self._compute(done, digests, tick)
            self._hold(alone=False)

    def _hold(self, *, alone: bool) -> None:
        """Keep the file from being rewritten while we read it, or read while we write it."""
        try:
            import fcntl
        except ImportError:  # no such locks outside of POSIX
            return
        if self._lock is None:
            self._lock = (self._folder / ".lock").open("ab")
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            fcntl.flock(self._lock.fileno(), kind | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"task.features={self._folder}: another run uses it with other answers; wait for "
                "it, or give another folder"
            ) from None

    def _compute(self, done: int, digests: list[str], tick: Callable[[int, int], None]) -> None:
        data = self._open()
        for pack in _packs(self._cached[done:]):
            for sample, rows in zip(pack, self._tapped.rows(pack), strict=True):
                start = self._offset[id(sample)]
                data[start : start + len(sample)] = rows
            done += len(pack)
            tick(done, len(self._cached))
            if done % 64 < len(pack) or done == len(self._cached):
                self._record(digests[:done])

    def of(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        """[L, W] of each sample of a batch."""
        if self._cached and self._data is None:
            self._data = self._open()
        missing = [sample for sample in samples if id(sample) not in self._offset]
        fresh = dict(zip(map(id, missing), self._computed(missing), strict=True))
        found = []
        for sample in samples:
            start = self._offset.get(id(sample))
            if start is None:
                found.append(fresh[id(sample)])
            else:
                assert self._data is not None
                found.append(self._data[start : start + len(sample)])
        return found if self._is_whole else [rows[:, self._columns] for rows in found]

    @property
    def _is_whole(self) -> bool:
        return len(self._columns) == self._width

    def _computed(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        return [rows for pack in _packs(samples) for rows in self._tapped.rows(pack)]

    def _open(self) -> Tensor:
        """[rows, W] the file, mapped into memory and grown to its size."""
        path, count = self._folder / _DATA, self._rows * self._width
        size = count * torch.empty(0, dtype=self._tapped.dtype).element_size()
        with path.open("ab") as file:
            if file.tell() < size:  # never shorter: another run may have it mapped
                file.truncate(size)
        flat = torch.from_file(str(path), shared=True, size=count, dtype=self._tapped.dtype)
        return flat.view(self._rows, self._width)

    def _kept(self, digests: Sequence[str]) -> int:
        """How many samples of the file's beginning are ours already."""
        held = self._held()
        if held is None or tuple(held["taps"]) != self._tapped.taps:
            return 0
        same = 0
        for ours, theirs in zip(digests, held["samples"], strict=False):
            if ours != theirs:
                break
            same += 1
        return same

    def _taps_on_disk(self, asked: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a file that has all of ours; else ours."""
        held = self._held()
        there = () if held is None else tuple(held["taps"])
        return there if set(asked) <= set(there) else asked

    def _held(self) -> dict[str, Any] | None:
        """The record of a file that was made with our target, None if there is none."""
        try:
            held = json.loads((self._folder / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        same = held.get("identity") == json.loads(json.dumps(self._identity, default=str))
        return held if same and "taps" in held else None

    def _record(self, digests: Sequence[str]) -> None:
        """Say what the file holds, after it holds it."""
        with (self._folder / _DATA).open("ab") as file:
            os.fsync(file.fileno())
        partial = self._folder / f".{_RECORD}.partial"
        taps = list(self._tapped.taps)
        held = {"identity": self._identity, "taps": taps, "samples": list(digests)}
        partial.write_text(json.dumps(held, default=str), encoding="utf-8")
        os.replace(partial, self._folder / _RECORD)


def _digest(sample: TrainingSample) -> str:
    return hashlib.sha256(sample.tokens.numpy().tobytes()).hexdigest()[:24]


def _packs(samples: Sequence[TrainingSample]) -> Iterator[list[TrainingSample]]:
    """Neighbours that fit in one pass of the target; a long one goes alone."""
    pack: list[TrainingSample] = []
    for sample in samples:
        if pack and sum(map(len, pack)) + len(sample) > PACK_ROWS:
            yield pack
            pack = []
        pack.append(sample)
    if pack:
        yield pack
