"""Say it again: the tested example of a plugin."""

from collections.abc import Sequence
from typing import Annotated

from specframe.drafter.base import DRAFTERS, Continuation, Retrieval
from specframe.registry import Range


@DRAFTERS.register("hello")
class Hello(Retrieval):
    """Proposes the `length` tokens that followed the latest earlier occurrence of the last `span`.

    Lossless under every lossless rule. Needs nothing of the target. Target forwards per step: 1.
    Source: drafter=ngram with a single match; yours names its paper here.
    """

    def __init__(
        self, *, span: Annotated[int, Range(1, 16)], length: Annotated[int, Range(1, 64)]
    ) -> None:
        self.span = span
        self.length = length

    def continuations(self) -> Sequence[Continuation]:
        tokens = self.context.tokens
        last = tokens[-self.span :]
        for end in range(len(tokens) - 1, self.span - 1, -1):
            if tokens[end - self.span : end] == last:
                return [Continuation(tokens[end : end + self.length])]
        return []
