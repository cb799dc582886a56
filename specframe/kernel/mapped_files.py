"""Memory of weights that are mapped from a file, given back once they are laid out anew."""

from __future__ import annotations

import ctypes
import mmap
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from torch import Tensor

_SMAPS = Path("/proc/self/smaps")  # of Linux; elsewhere nothing is given back early
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)")


@dataclass(frozen=True)
class MappedFiles:
    """Places in memory where files are mapped and nothing was written since.

    Whoever reads such a place after it was given back gets the same bytes, from the file.
    """

    ranges: list[tuple[int, int]] = field(default_factory=list)  # first byte, end

    @classmethod
    def of_this_process(cls) -> Self:
        """Those of this process."""
        found: list[tuple[int, int]] = []
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
                found.append(current[:2])
        return cls(found)

    def release(self, weight: Tensor) -> None:
        """Take the pages of a weight out of memory, if it lies in one of these places."""
        start, end, page = weight.data_ptr(), weight.data_ptr() + weight.nbytes, mmap.PAGESIZE
        if not any(low <= start and end <= high for low, high in self.ranges):
            return
        first, last = -(-start // page) * page, end // page * page
        if last > first:
            size = ctypes.c_size_t(last - first)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), size, mmap.MADV_DONTNEED)
