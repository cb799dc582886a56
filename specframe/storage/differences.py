"""The first key in which two sets of settings differ, so that a refusal can name it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_LONGEST = 60  # letters of a value that a message shows
_BEFORE = 12  # letters of a long value that stand before the first one that differs


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One key with two values."""

    key: str  # dotted, as on the command line
    earlier: str  # as JSON, cut to where the two differ
    now: str

    def __str__(self) -> str:
        return f"{self.key}={self.earlier}, this run has {self.now}"


def first_difference(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> Difference | None:
    """The first key of `now`, else of `earlier`, whose values differ; None if there is none.

    Nested mappings are compared key by key. Values are compared as JSON keeps them, so a tuple is
    a list. A key that one side lacks is null there.
    """
    return next(_differences(_plain(earlier), _plain(now), ""), None)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def _differences(earlier: dict[str, Any], now: dict[str, Any], above: str) -> Iterator[Difference]:
    for key in dict.fromkeys([*now, *earlier]):
        before, after = earlier.get(key), now.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{above}{key}.")
        elif before != after:
            shown = _shown(json.dumps(before), json.dumps(after))
            yield Difference(key=f"{above}{key}", earlier=shown[0], now=shown[1])


def _shown(earlier: str, now: str) -> tuple[str, str]:
    """Both texts, long ones cut so that what differs is still there."""
    same = 0
    while same < min(len(earlier), len(now)) and earlier[same] == now[same]:
        same += 1
    start = max(0, same - _BEFORE)
    return _cut(earlier, start), _cut(now, start)


def _cut(text: str, start: int) -> str:
    if len(text) <= _LONGEST:
        return text
    # The three dots count as letters too.
    start = min(start, len(text) - _LONGEST + 6)
    part = text[start : start + _LONGEST - 6]
    end = "" if start + len(part) == len(text) else "..."
    return f"{'...' if start else ''}{part}{end}"
