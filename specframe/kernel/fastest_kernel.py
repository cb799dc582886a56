"""Which of the known kernels multiplies fastest here: measured once per machine and shape, kept."""

from __future__ import annotations

import json
import os
import tempfile
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

Kernel = Literal["own", "onednn", "torch"]
Shape = tuple[int, ...]  # of a weight: output columns, inputs
Times = dict[str, float]  # kernel -> ms of all ROWS together
ROWS = (1, 8, 16)  # of a plain step and of passes over small trees
_COLUMNS = 4096  # of a weight, at most; the rest would only take longer
_REPEATS = 7
# What another kernel must be faster by, since ours alone computes a row alike in every company:
_MARGIN = 1.1  # a tenth,
_SLACK_MS = 0.05  # and more than calling it costs, of all ROWS together


def fastest_kernels(shapes: Sequence[Shape], *, joined: bool) -> dict[Shape, Kernel]:
    """The kernel of each shape. joined: all of them are one call if all are our own.

    Times are kept in the cache, under what this machine, torch and the threads are.
    Raises NoCompiler.
    """
    times = _times(sorted(set(shapes)))
    best: dict[Shape, Kernel] = {shape: _fastest(times[shape]) for shape in times}
    own = sum(times[shape]["own"] for shape in shapes)
    if joined and not _slower(own, sum(times[shape][best[shape]] for shape in shapes)):
        return dict.fromkeys(best, "own")
    return best


def time_kernels(shape: Shape) -> Times:
    """Fastest of a few interleaved runs of each kernel, ms."""
    columns, inputs = min(shape[0], _COLUMNS), shape[1]
    weight = torch.rand(columns, inputs) - 0.5
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "own": PackedMatrix(weight),
        "torch": lambda x: functional.linear(x, weight),
    }
    if OneDNN.available():
        ways["onednn"] = OneDNN(weight)
    found = {(kernel, rows): torch.inf for kernel in ways for rows in ROWS}
    for rows in ROWS:
        x = torch.rand(rows, inputs)
        for _ in range(_REPEATS):
            for kernel, way in ways.items():
                start = time.perf_counter()
                way(x)
                spent = 1e3 * (time.perf_counter() - start)
                found[kernel, rows] = min(found[kernel, rows], spent)
    return {kernel: sum(found[kernel, rows] for rows in ROWS) for kernel in ways}


def _fastest(times: Times) -> Kernel:
    able = [kernel for kernel in get_args(Kernel) if kernel in times]
    best: Kernel = min(able, key=lambda kernel: times[kernel])
    return best if _slower(times["own"], times[best]) else "own"


def _slower(own: float, other: float) -> bool:
    return own > _MARGIN * other + _SLACK_MS


def _times(shapes: Collection[Shape]) -> dict[Shape, Times]:
    file = _file()
    kept = _read(file)
    names = {shape: f"{shape[0]} x {shape[1]}" for shape in shapes}
    if missing := [shape for shape in shapes if "own" not in kept.get(names[shape], {})]:
        with torch.inference_mode():
            kept |= {names[shape]: time_kernels(shape) for shape in missing}
        with suppress(OSError):  # a cache that cannot be written costs a measurement each time
            _write(file, kept)
    return {shape: kept[name] for shape, name in names.items()}


def _file() -> Path:
    """Named by the kernel, which has the processor in its name, and what else matters."""
    library = library_file()
    name = f"{library.stem}-torch{torch.__version__}-threads{torch.get_num_threads()}.json"
    return library.with_name(name)


def _read(file: Path) -> dict[str, Times]:
    """What was kept; nothing of a file that is not there, or no table of times."""
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return {
            str(name): {str(kernel): float(ms) for kernel, ms in times.items()}
            for name, times in held.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(file: Path, times: dict[str, Times]) -> None:
    """Whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as made:
        json.dump(times, made, indent=2)
    os.replace(made.name, file)
