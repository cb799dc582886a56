"""Which of the kernels multiplies a weight fastest here: measured once per machine and shape.

Our own kernel computes a row alike whatever rows are beside it, so it wins unless another one is
clearly faster. Times are stored next to the compiled kernel.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from specframe.kernel.library import library_file
from specframe.kernel.onednn import OneDNN
from specframe.kernel.packed_linear import PackedMatrix
from specframe.storage.digests import is_unchanged, seal
from specframe.storage.whole_files import write_whole

Kernel = Literal["own", "onednn", "torch"]
Shape = tuple[int, ...]  # (output columns, inputs) of a weight
Times = dict[str, float]  # kernel -> ms of the products of all ROWS together
ROWS = (1, 8, 16)  # rows of a plain step and of passes over small trees
_COLUMNS = 4096  # columns of a weight that are measured at most; more would only take longer
_REPEATS = 7
# Another kernel must be faster by both of these, since ours alone computes a row alike in every
# company: by a tenth, and by more than a call of it costs (ms of all ROWS together).
_MARGIN = 1.1
_SLACK_MS = 0.05


def fastest_kernels(shapes: Sequence[Shape], *, joined: bool) -> dict[Shape, Kernel]:
    """The kernel for each shape of weight.

    joined: whether all products become one call if all of them are our own kernel's; it is then
    chosen for every shape unless the fastest kernel of each is clearly faster in sum. Times are
    stored in the cache folder, for this processor, torch and number of threads. Raises NoCompiler.
    """
    times = _times(sorted(set(shapes)))
    best: dict[Shape, Kernel] = {shape: _fastest(times[shape]) for shape in times}
    own = sum(times[shape]["own"] for shape in shapes)
    if joined and not _slower(own, sum(times[shape][best[shape]] for shape in shapes)):
        return dict.fromkeys(best, "own")
    return best


def time_kernels(shape: Shape) -> Times:
    """The fastest of a few interleaved runs of each kernel, in ms."""
    columns, inputs = min(shape[0], _COLUMNS), shape[1]
    weight = torch.rand(columns, inputs) - 0.5
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "own": PackedMatrix(weight),
        "torch": lambda x: functional.linear(x, weight),
    }
    if OneDNN.available():
        ways["onednn"] = OneDNN(weight)
    best = {(kernel, rows): torch.inf for kernel in ways for rows in ROWS}
    for rows in ROWS:
        x = torch.rand(rows, inputs)
        for _ in range(_REPEATS):
            for kernel, way in ways.items():
                start = time.perf_counter()
                way(x)
                spent = 1e3 * (time.perf_counter() - start)
                best[kernel, rows] = min(best[kernel, rows], spent)
    return {kernel: sum(best[kernel, rows] for rows in ROWS) for kernel in ways}


def _fastest(times: Times) -> Kernel:
    present = [kernel for kernel in get_args(Kernel) if kernel in times]
    best: Kernel = min(present, key=lambda kernel: times[kernel])
    return best if _slower(times["own"], times[best]) else "own"


def _slower(own: float, other: float) -> bool:
    return own > _MARGIN * other + _SLACK_MS


def _times(shapes: Collection[Shape]) -> dict[Shape, Times]:
    file = _file()
    stored = _read(file)
    names = {shape: f"{shape[0]} x {shape[1]}" for shape in shapes}
    if missing := [shape for shape in shapes if "own" not in stored.get(names[shape], {})]:
        with torch.inference_mode():
            stored |= {names[shape]: time_kernels(shape) for shape in missing}
        with suppress(OSError):  # a cache that cannot be written costs a measurement each time
            _write(file, stored)
    return {shape: stored[name] for shape, name in names.items()}


def _file() -> Path:
    """The file of the times, named by the compiled kernel (so by the processor), torch, threads."""
    library = library_file()
    name = f"{library.stem}-torch{torch.__version__}-threads{torch.get_num_threads()}.json"
    return library.with_name(name)


def _read(file: Path) -> dict[str, Times]:
    """The stored times; none of a file that is not there, was changed or is no table of times."""
    if not is_unchanged(file):
        return {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {
            str(name): {str(kernel): float(ms) for kernel, ms in times.items()}
            for name, times in stored.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(file: Path, times: dict[str, Times]) -> None:
    """Write the file, which appears whole or not at all, and its seal."""
    write_whole(file, json.dumps(times, indent=2).encode())
    seal(file)
