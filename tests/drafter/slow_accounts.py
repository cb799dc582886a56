"""What the slow accounts of methods share: a whole sequence per token, and a window in plain lists.

An account says what a method must do, step by step, without a cache: its tests compare records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from specframe.target.toy import Toy
from tests.small_models import full_logits

Following = Callable[[Sequence[int]], int]  # the greedy token after a sequence


@lru_cache(maxsize=400_000)
def likeliest(made: Any, tokens: tuple[int, ...], count: int = 1) -> list[int]:
    """The `count` likeliest tokens after a sequence, best first, by one pass over all of it."""
    logits = made.law(tokens) if isinstance(made, Toy) else full_logits(made, tokens)[-1]
    return logits.topk(count).indices.tolist() if count > 1 else [int(logits.argmax())]


class Window:
    """A Jacobi window of `width` columns and the pool that its n-grams fill, the oldest first."""

    def __init__(
        self, prompt: Sequence[int], *, width: int, ngram: int, most: int, after: Following
    ) -> None:
        self.width, self.ngram, self.most, self.after = width, ngram, most, after
        first = [prompt[column * len(prompt) // width] for column in range(width)]
        self.levels = [first] if width else []
        self.pool: list[tuple[int, ...]] = []

    def remember(self, ngram: Sequence[int]) -> None:
        """An n-gram becomes the newest; one too many after a token drops the oldest there."""
        self.pool = [one for one in self.pool if one != tuple(ngram)] + [tuple(ngram)]
        same = [one for one in self.pool if one[0] == ngram[0]]
        if len(same) > self.most:
            self.pool.remove(same[0])

    def newest(self, token: int, count: int | None = None) -> list[list[int]]:
        """What followed a token, the newest first."""
        return [list(one[1:]) for one in reversed(self.pool) if one[0] == token][:count]

    def look_ahead(self, text: Sequence[int]) -> None:
        """One pass of the window behind a text."""
        if not self.levels:
            return
        first, *others = self.levels
        first[0] = text[-1]
        new = []
        for column in range(self.width):
            seen = [*text, *first[1 : column + 1], *(level[column] for level in others)]
            new.append(self.after(seen))
        if len(self.levels) < self.ngram - 1:
            self.levels.append(new)
            return
        for column in range(self.width):
            self.remember([*(level[column] for level in self.levels), new[column]])
        self.levels = [*others, new]


def one_pass(
    after: Following, text: Sequence[int], guesses: Sequence[Sequence[int]], left: int
) -> list[int]:
    """What one pass emits: greedy tokens as long as some guess said them, and one more."""
    emitted = [after(text)]
    while len(emitted) < left and any(list(one[: len(emitted)]) == emitted for one in guesses):
        emitted.append(after([*text, *emitted]))
    return emitted


def num_nodes(guesses: Sequence[Sequence[int]]) -> int:
    """The nodes of the trie of some guesses."""
    return len({tuple(one[:n]) for one in guesses for n in range(1, len(one) + 1)})


def whole(account: Any, prompt: Sequence[int], count: int) -> Any:
    """The account at the end of an answer of `count` tokens."""
    while len(account.text) < len(prompt) + count:
        account.step(len(prompt) + count - len(account.text))
    return account
