"""Combinations in turn: few in the fast suite, all of them in the slow one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def in_turn(items: Iterable[Sequence[Any]], others: Iterable[Any]) -> list[Any]:
    """Each item with one of the others behind it, in turn; with every one in the slow suite."""
    choices = list(others)
    return [
        pytest.param(*item, other, marks=[] if place % len(choices) == turn else [pytest.mark.slow])
        for place, item in enumerate(items)
        for turn, other in enumerate(choices)
    ]
