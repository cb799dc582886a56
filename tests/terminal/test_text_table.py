"""Numbers as text, and tables as CSV."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from specframe.terminal.text_table import percent, shown, text_table, with_interval, write_csv


def test_what_is_not_known_is_blank() -> None:
    assert (shown(None), percent(None), with_interval(None, None)) == ("", "", "")
    assert (shown(2.345, 1), percent(0.125)) == ("2.3", "12.5 %")
    assert with_interval(2.0, (1.5, 2.5)) == "2.00 [1.50, 2.50]"


def test_a_csv_has_the_keys_of_all_rows_and_the_ends_of_intervals(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    write_csv(file, [{"a": 1, "range": (0.5, 1.5)}, {"a": 2, "b": "x,y"}])
    assert file.read_text(encoding="utf-8").splitlines() == [
        "a,range.low,range.high,b",
        "1,0.5,1.5,",
        '2,,,"x,y"',
    ]
    assert list(tmp_path.iterdir()) == [file]


def test_a_narrow_terminal_breaks_the_names_alone() -> None:
    console = Console(width=24, record=True, file=io.StringIO())
    console.print(text_table(["side", "speed"], [["a long name of a side", "1234.56"]]))
    text = console.export_text()
    assert "1234.56" in text and "a long name of a side" not in text
