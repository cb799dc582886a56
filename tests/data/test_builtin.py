"""data=builtin: the set that comes with the package."""

from __future__ import annotations

from specframe.data.builtin import Builtin
from specframe.prompts.reader import read_prompts


def test_it_is_the_built_in_set() -> None:
    assert read_prompts(Builtin().file()) == read_prompts("builtin")
