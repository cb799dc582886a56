"""A target whose law is a table: a Markov chain of order 2 with exactly known probabilities."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.registry import Range
from specframe.runtime.base import Runtime
from specframe.target.base import TARGETS, Forward, Target
from specframe.types import Gives, Rows

_ALPHABET = string.ascii_lowercase + string.ascii_uppercase


class Letters:
    """Token i is the i-th letter; other characters of a text are left out."""

    chat_template = None

    def __init__(self, vocab_size: int) -> None:
        self._letters = _ALPHABET[:vocab_size]

    def encode(self, text: str) -> list[int]:
        return [self._letters.index(letter) for letter in text if letter in self._letters]

    def encode_plain(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_chat(self, messages: Sequence[dict[str, str]], /, **template_args: Any) -> list[int]:
        return self.encode(messages[-1]["content"])

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._letters[token] for token in ids)

    def decoder(self) -> Callable[[int], str]:
        return lambda token: self.decode([token])

    def vocabulary(self) -> dict[str, int]:
        return {letter: token for token, letter in enumerate(self._letters)}


@TARGETS.register("toy")
class Toy(Target):
    """p(next | previous, current) from a random table [V, V, V] in float64.

    The previous token is read back from the cache through the mask, so that slots, masks and
    commits are exercised as in a real model. `spread` scales the logits; `blend` mixes a second
    table in (0: the target itself; more: a draft that agrees with it less).
    """

    gives: Gives = Gives(taps=frozenset({"embed", "final_postnorm"}))

    def __init__(
        self,
        *,
        vocab_size: Annotated[int, Range(2, len(_ALPHABET))],
        table_seed: int,
        spread: Annotated[float, Range(0, 100)],
        blend: Annotated[float, Range(0, 1)],
        max_positions: Annotated[int, Range(2, None)] | None,
        device: torch.device,
        runtime: Runtime,
        draft: str | None,
    ) -> None:
        shape = (vocab_size, vocab_size, vocab_size)
        generator = torch.Generator().manual_seed(table_seed)
        table = torch.randn(shape, generator=generator, dtype=torch.float64)
        other = torch.randn(shape, generator=generator, dtype=torch.float64)
        mixed = (1 - blend) * table + blend * other
        self.table = (spread * mixed).log_softmax(-1).to(device)
        self.gives = Gives(taps=self.gives.taps, max_positions=max_positions)
        self.vocab_size = vocab_size
        self.num_layers = 1
        self.device = device
        self.dtype = torch.float64
        self.name = "toy"
        self.eos_ids = ()
        self.tokenizer = Letters(vocab_size)
        self.draft = draft

    def forward(
        self,
        rows: Rows,
        cache: CacheManager,
        *,
        layers: tuple[int, int] | None = None,
        skip: frozenset[str] = frozenset(),
        taps: Sequence[str] = (),
        want: Tensor | None = None,
    ) -> Forward:
        assert rows.tokens is not None and layers is None and not skip
        tokens, opened = rows.tokens, cache.opened(rows)
        written, places = opened.dense(
            0, tokens.double().view(1, 1, -1, 1), rows.positions.double().view(1, 1, -1, 1)
        )
        before = (places[0, 0, :, 0] == rows.positions[:, None] - 1) & opened.visible()  # [R, S]
        previous = (before * written[0, 0, :, 0]).sum(-1).long()  # no token before the first: 0
        law = self.table[previous, tokens]  # [R, V]
        found = {"embed": self.embed(tokens), "final_postnorm": law}
        return Forward(
            logits=None if want is None else law[want],
            hidden=law,
            taps={name: found[name] for name in taps},
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(tokens, self.vocab_size).double()

    def head(self, hidden: Tensor) -> Tensor:
        return hidden

    def law(self, tokens: Sequence[int]) -> Tensor:
        """[V] exact log-probabilities of the token after `tokens` (at temperature 1)."""
        previous = tokens[-2] if len(tokens) > 1 else 0
        return self.table[previous, tokens[-1]]
