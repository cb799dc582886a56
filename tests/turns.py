"""Combinations in turn: few in the fast suite, all of them in the slow one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def in_turn(items: Iterable[Sequence[Any]], others: Iterable[Any], *, every: int = 1) -> list[Any]:
    """Each item with one of the others behind it, in turn; with every one in the slow suite.

    every: the fast suite takes every so manieth item only.
    """
    choices = list(others)
    return [
        pytest.param(
            *item,
            other,
            marks=[]
            if place % every == 0 and place // every % len(choices) == turn
            else [pytest.mark.slow],
        )
        for place, item in enumerate(items)
        for turn, other in enumerate(choices)
    ]
