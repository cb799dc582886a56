"""The frozen target's hidden states for every training sequence, computed once and kept on disk.

There is one flat file of rows [W] (the taps side by side) in the order of the samples, up to a size
limit; samples beyond it are computed anew whenever a batch needs them. The rows are rounded to the
cache's dtype either way, so a run does not depend on which of them were cached.
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
from specframe.storage.whole_files import write_whole
from specframe.target.base import DependsOnReach, Target
from specframe.training.samples import TrainingSample
from specframe.types import Rows

PACK_ROWS = 512  # tokens of short sequences that go through the target together
_DATA, _RECORD = "features.bin", "features.json"


@dataclass(frozen=True, kw_only=True)
class FeatureReader:
    """Runs the frozen target over sequences and reads hidden states off its passes."""

    target: Target
    taps: tuple[str, ...]  # names of the states
    dtype: torch.dtype  # of the cache
    # A context in which passes are quicker, as long as nothing else is computed.
    faster: Callable[[], AbstractContextManager[None]] = nullcontext
    # A context in which the target has its own weights (Medusa-2 adapts them).
    original: Callable[[], AbstractContextManager[None]] = nullcontext

    @torch.no_grad()
    def rows(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        """[L, W] of each sample, all in one pass, rounded to the cache's dtype, on the CPU."""
        lengths = [len(sample) for sample in samples]
        target, device = self.target, self.target.device
        if isinstance(target, DependsOnReach) and len(set(map(target.table_key, lengths))) > 1:
            return [rows for sample in samples for rows in self.rows([sample])]
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        owner = owner.to(device)
        cache = CACHES.get("dynamic")()
        cache.open(0, columns=sum(lengths), device=device)
        cache.reach[0] = max(lengths)  # of a text of its own
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
            states = self.target.forward(rows, cache, taps=self.taps).taps
        joined = torch.cat([states[name] for name in self.taps], dim=-1).to(self.dtype).cpu()
        if not bool(torch.isfinite(joined).all()):
            raise ConfigError(
                f"task.cache_dtype={str(self.dtype).removeprefix('torch.')}: a hidden state does "
                "not fit in it; use bfloat16 or float32"
            )
        return list(joined.split(lengths))


class FeatureCache:
    """The rows of each sample, from the file or computed.

    width: values of a row (W). max_bytes: size limit of the file. identity: the target's
    fingerprint, on which the rows depend. A file whose samples begin like these is carried on. It
    may have more taps than are read here.
    """

    def __init__(
        self,
        reader: FeatureReader,
        samples: Sequence[TrainingSample],
        *,
        width: int,
        folder: Path,
        max_bytes: int,
        identity: Any,
    ) -> None:
        each, requested = width // len(reader.taps), reader.taps
        self._folder = folder
        self._identity = {"of": identity, "dtype": str(reader.dtype), "each": each}
        self._reader = replace(reader, taps=self._taps_on_disk(requested))
        self._width = width = each * len(self._reader.taps)
        first = [each * self._reader.taps.index(name) for name in requested]
        self._columns = torch.cat([torch.arange(each) + start for start in first])
        size = torch.empty(0, dtype=reader.dtype).element_size()
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
        """Compute the missing rows. tick(done, all), in samples, is called after each pass."""
        if not self._cached:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        digests = [_digest(sample) for sample in self._cached]
        self._lock_folder(alone=False)
        done = self._num_present(digests)
        if done < len(digests):
            self._lock_folder(alone=True)
            with self._reader.faster():
                self._compute(done, digests, tick)
            self._lock_folder(alone=False)

    def _lock_folder(self, *, alone: bool) -> None:
        """Keep other runs from writing while we read the file, or reading while we write it."""
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
            for sample, rows in zip(pack, self._reader.rows(pack), strict=True):
                start = self._offset[id(sample)]
                data[start : start + len(sample)] = rows
            done += len(pack)
            tick(done, len(self._cached))
            if done % 64 < len(pack) or done == len(self._cached):
                self._write_record(digests[:done])

    def of(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        """[L, W] of each sample of a batch."""
        if self._cached and self._data is None:
            self._data = self._open()
        missing = [sample for sample in samples if id(sample) not in self._offset]
        fresh = dict(zip(map(id, missing), self._computed(missing), strict=True))
        rows = []
        for sample in samples:
            start = self._offset.get(id(sample))
            if start is None:
                rows.append(fresh[id(sample)])
            else:
                assert self._data is not None
                rows.append(self._data[start : start + len(sample)])
        return rows if self._is_whole else [each[:, self._columns] for each in rows]

    @property
    def _is_whole(self) -> bool:
        return len(self._columns) == self._width

    def _computed(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        return [rows for pack in _packs(samples) for rows in self._reader.rows(pack)]

    def _open(self) -> Tensor:
        """[rows, W] the file, mapped into memory and grown to its size."""
        path, count = self._folder / _DATA, self._rows * self._width
        size = count * torch.empty(0, dtype=self._reader.dtype).element_size()
        with path.open("ab") as file:
            if file.tell() < size:  # never shorter: another run may have it mapped
                file.truncate(size)
        flat = torch.from_file(str(path), shared=True, size=count, dtype=self._reader.dtype)
        return flat.view(self._rows, self._width)

    def _num_present(self, digests: Sequence[str]) -> int:
        """How many samples at the beginning of the file are ours."""
        record = self._read_record()
        if record is None or tuple(record["taps"]) != self._reader.taps:
            return 0
        same = 0
        for ours, theirs in zip(digests, record["samples"], strict=False):
            if ours != theirs:
                break
            same += 1
        return same

    def _taps_on_disk(self, requested: tuple[str, ...]) -> tuple[str, ...]:
        """The taps of a file that has all of ours; else ours."""
        record = self._read_record()
        there = () if record is None else tuple(record["taps"])
        return there if set(requested) <= set(there) else requested

    def _read_record(self) -> dict[str, Any] | None:
        """The record of a file that was computed with our target, None if there is none."""
        try:
            record = json.loads((self._folder / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        same = record.get("identity") == json.loads(json.dumps(self._identity, default=str))
        return record if same and "taps" in record else None

    def _write_record(self, digests: Sequence[str]) -> None:
        """Record the samples in the file, once they are on the disk."""
        with (self._folder / _DATA).open("ab") as file:
            os.fsync(file.fileno())
        taps = list(self._reader.taps)
        record = {"identity": self._identity, "taps": taps, "samples": list(digests)}
        write_whole(self._folder / _RECORD, json.dumps(record, default=str).encode())


def _digest(sample: TrainingSample) -> str:
    return hashlib.sha256(sample.tokens.numpy().tobytes()).hexdigest()[:24]


def _packs(samples: Sequence[TrainingSample]) -> Iterator[list[TrainingSample]]:
    """Runs of neighbours that fit in one pass of the target; a long sample goes alone."""
    pack: list[TrainingSample] = []
    for sample in samples:
        if pack and sum(map(len, pack)) + len(sample) > PACK_ROWS:
            yield pack
            pack = []
        pack.append(sample)
    if pack:
        yield pack
