"""What is read from a file of positions is what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe.errors import ConfigError
from specframe.tracing.traced_positions import TracedAnswer, read_positions
from tests.trace.test_full import record


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    folder = record(tmp_path, "drafter=router", "drafter.mode=merge", "tree=dynamic")
    file = folder / "positions" / "00000.npz"
    positions = read_positions(file)
    assert {call.source for one in positions for call in one.calls} == {"ngram", "lm"}
    TracedAnswer(positions).write(tmp_path / "again.npz")
    again = read_positions(tmp_path / "again.npz")
    for one, other in zip(positions, again, strict=True):
        for call, same in zip(one.calls, other.calls, strict=True):
            assert call.facts() == same.facts()
            assert (call.tokens == same.tokens).all()
    file.write_bytes(b"no")
    with pytest.raises(ConfigError, match=r"00000\.npz: not positions of trace=full"):
        read_positions(file)
