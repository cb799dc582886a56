"""Memory of weights that are mapped from a file, given back once a kernel has a copy of its own.

A model that is loaded from safetensors is mapped from its file: its pages count as memory in use as
soon as they were read. After a layer is packed, nobody reads the original again, so its pages are
given back at once and a model is never in memory twice.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from torch import Tensor

_SMAPS = Path("/proc/self/smaps")  # Linux only; elsewhere nothing is given back early
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)")


@dataclass(frozen=True)
class MappedFiles:
    """Ranges of memory into which a file is mapped and nothing was written since.

    A range that is read after it was given back has the same bytes, from the file again.
    """

    ranges: list[tuple[int, int]] = field(default_factory=list)  # first byte, end

    @classmethod
    def of_this_process(cls) -> Self:
        """The ranges of this process as they are now; none on another system than Linux."""
        ranges: list[tuple[int, int]] = []
        try:
            lines = _SMAPS.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return cls()
        current = (0, 0, False)
        for line in lines:
            if opened := _MAPPING.match(line):
                start, end, inode = opened.groups()
                current = (int(start, 16), int(end, 16), int(inode) != 0)
            elif line.startswith("Anonymous:") and current[2] and line.split()[1] == "0":
                ranges.append(current[:2])
        return cls(ranges)

    def release(self, weight: Tensor) -> None:
        """Take the pages of a weight out of memory, if it lies in one of these ranges."""
        start, end, page = weight.data_ptr(), weight.data_ptr() + weight.nbytes, mmap.PAGESIZE
        if not any(low <= start and end <= high for low, high in self.ranges):
            return
        first, last = -(-start // page) * page, end // page * page
        if last > first:
            size = ctypes.c_size_t(last - first)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), size, mmap.MADV_DONTNEED)
