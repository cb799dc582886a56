"""The example's test: the contract suite, and one case worked by hand."""

from __future__ import annotations

import torch

from specframe.drafter.base import DRAFTERS
from specframe.records import Context
from specframe.testing.drafters import DrafterContract
from specframe.types import TargetOutput


class TestHello(DrafterContract):
    """What every drafter must do."""

    word = "hello"


def test_it_says_what_followed_the_last_time() -> None:
    drafter = DRAFTERS.get("hello")(span=2, length=3)  # type: ignore[call-arg]
    context = Context.of([1, 2, 5, 1, 2, 3, 0, 1, 2], torch.device("cpu"))
    drafter.begin(context, TargetOutput(logits=torch.zeros(1, 6)))
    (only,) = drafter.continuations()  # type: ignore[attr-defined]
    assert list(only.tokens) == [3, 0, 1]
