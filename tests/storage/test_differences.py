"""The key that a refusal names, and both of its values."""

from __future__ import annotations

import pytest

from specframe.storage.differences import first_difference


@pytest.mark.parametrize(
    ("earlier", "now", "expected"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": (1, 2)}, {"a": [1, 2]}, None),
        ({"a": 1}, {"a": 2}, "a=1, this run has 2"),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": None}}}, "a.b.c=1, this run has null"),
        ({"a": {"b": 1}}, {"a": None}, 'a={"b": 1}, this run has null'),
        ({"a": 1, "b": 2}, {"b": 3, "a": 1}, "b=2, this run has 3"),
        ({"a": 1, "b": 2}, {"a": 1}, "b=2, this run has null"),
        ({}, {"a": "x"}, 'a=null, this run has "x"'),
    ],
)
def test_the_first_key_that_differs_is_named(
    earlier: dict[str, object], now: dict[str, object], expected: str | None
) -> None:
    found = first_difference(earlier, now)
    assert (None if found is None else str(found)) == expected


def test_of_long_values_the_part_that_differs_is_shown() -> None:
    found = first_difference({"path": "a" * 80 + "b" + "c" * 80}, {"path": "a" * 80 + "d"})
    assert found is not None
    assert found.earlier == "..." + "a" * 12 + "b" + "c" * 41 + "..."
    assert found.now == "..." + "a" * 52 + 'd"'
    assert max(len(found.earlier), len(found.now)) <= 60
