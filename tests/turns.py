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


def rest_slow(items: Iterable[Any], *, fast: int = 1) -> list[Any]:
    """The first items as they are, the others for the slow suite only.

    items: values of one parameter, or a tuple of values each for several.
    """
    return [
        pytest.param(
            *(item if isinstance(item, tuple) else (item,)),
            marks=[] if place < fast else [pytest.mark.slow],
        )
        for place, item in enumerate(items)
    ]
