"""The text of an answer token by token."""

from __future__ import annotations

from collections.abc import Sequence

from specframe.target.base import Tokenizer


class TextStream:
    """Text of an answer token by token; the pieces concatenate to the decoded whole.

    tokenizer: of the target; None: every piece is empty.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokens: list[int] = []
        self.shown = ""
        self._tokenizer = tokenizer
        self._step = (lambda token: "") if tokenizer is None else tokenizer.decoder()

    def add(self, token: int) -> str:
        """The text that is certain after this token."""
        self.tokens.append(token)
        new = self._step(token)
        self.shown += new
        return new

    def rest(self) -> str:
        """What the whole answer has beyond what was shown (bytes of a cut character)."""
        text = self._whole(self.tokens)
        new, self.shown = text[len(self.shown) :], text
        return new

    def _whole(self, tokens: Sequence[int]) -> str:
        return "" if self._tokenizer is None else self._tokenizer.decode(tokens)
