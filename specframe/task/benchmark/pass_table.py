"""The times of passes as a benchmark prints them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from specframe.task.benchmark.passes import PassTimes
from specframe.terminal.text_table import text_table

_GB, _MB = 1e9, 1e6


def printed_passes(times: PassTimes) -> Iterator[Table | str]:
    """A sentence, a table with a line for each number of rows, and a sentence."""
    yield (
        f"Milliseconds of a pass of {times.target} behind {times.context} tokens, with "
        f"runtime={times.runtime}, by its number of rows; "
        f"a plain step takes {times.step_ms[0]:.3g} ms:"
    )
    copy, moved = times.copy_bytes_per_s, times.moved
    headings = ["rows", "ms", "of one row"]
    for name in times.peers:
        headings += [name, f"ours / {name} 1 row"]
    headings += ["GB/s", "of a copy's"] if moved and copy else []
    rows = []
    for place, (count, ms) in enumerate(zip(times.rows, times.forward_ms, strict=True)):
        cells = [str(count), f"{ms:.4g}", f"{ms / times.forward_ms[0]:.2f}"]
        for theirs in times.peers.values():
            cells += [f"{theirs[place]:.4g}", f"{ms / theirs[0]:.2f}"]
        if moved and copy:
            rate = 1e3 * moved[place] / ms
            cells += [f"{rate / _GB:.1f}", f"{100 * rate / copy:.0f} %"]
        rows.append(cells)
    yield text_table(headings, rows, num_names=0, fold="names")
    if moved and copy:
        yield (
            f"A pass has to read {moved[0] / _MB:.0f} MB of weights and keys; a plain copy on this "
            f"machine moves {copy / _GB:.1f} GB/s."
        )
