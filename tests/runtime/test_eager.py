"""The reference runtime adds nothing."""

from __future__ import annotations

from specframe.runtime.base import Tensors
from specframe.runtime.eager import Eager


def test_functions_are_returned_as_they_are() -> None:
    def fn(fed: Tensors, held: Tensors) -> Tensors:
        return fed

    assert Eager(buckets=None).launch.wrap(fn, "key") is fn
