"""The contract of a target: one primitive, `forward`, and the two passes the loop is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.registry import Registry
from specframe.types import Draft, Gives, Rows, TargetOutput

PREFILL_ROWS = 2048  # rows of one prefill pass; bounds the mask and the activations


class Tokenizer(Protocol):
    """What the framework asks of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Ids of a raw text, with the special tokens that the model starts a text with."""

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a piece of text, without any special token."""

    def encode_chat(self, messages: Sequence[dict[str, str]], /, **template_args: Any) -> list[int]:
        """Ids of a conversation, up to where the answer begins.

        template_args: variables of the chat template. Raises ConfigError for what it refuses.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""

    def decoder(self) -> Callable[[int], str]:
        """Decodes one answer token by token; "" while a character is not complete."""

    @property
    def chat_template(self) -> str | None:
        """The template of `encode_chat`, None if there is none."""

    def vocabulary(self) -> dict[str, int]:
        """Token to id, to compare two tokenizers."""


@dataclass(frozen=True, kw_only=True)
class Forward:
    """logits [W, V] of the rows wanted; hidden [R, H] the residual stream after the last layer run
    (not normed); taps: name -> [R, H]."""

    logits: Tensor | None
    hidden: Tensor
    taps: dict[str, Tensor] = field(default_factory=dict)


@runtime_checkable
class DependsOnReach(Protocol):
    """A target whose arithmetic depends on the positions that a text may reach (rotary tables).

    It is fixed for a whole text by `CacheManager.reach`, never by the rows of a pass.
    """

    def table_key(self, reach: int) -> Hashable:
        """Equal for texts that are computed alike."""


class Target(ABC):
    """A causal language model whose text is wanted (or that drafts for another one).

    Taps: `embed` (what enters block 0), `resid:i` (what enters block i; resid:L leaves the last),
    `final_prenorm` (= resid:L) and `final_postnorm` (what enters the output head).
    """

    gives: Gives  # of the class: what it can do before weights are loaded; then of the model
    vocab_size: int
    num_layers: int
    device: torch.device
    dtype: torch.dtype
    name: str
    eos_ids: tuple[int, ...]
    tokenizer: Tokenizer | None

    @abstractmethod
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
        """One pass over `rows`, whose slots are reserved; writes their keys, commits nothing.

        layers [a, b): run only these blocks; a > 0 needs rows.hidden (what enters block a). With
        a = b = num_layers only norm and head are left.
        skip: sub-layers to leave out, as "attention:3" or "mlp:3". want [W]: rows whose logits are
        needed (after norm and head, also when b < L); None for none.
        """

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """[..., H] input embeddings of tokens [...]."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """[..., V] logits of normed hidden states [..., H]."""

    def prefill(
        self, tokens: Sequence[int], cache: CacheManager, *, taps: Sequence[str] = ()
    ) -> TargetOutput:
        """Run tokens after the committed prefix and commit them; logits [1, V] of the last one."""
        ids = torch.tensor(list(tokens), dtype=torch.long, device=self.device)
        if cache.reach[0] is None and not cache.lengths[0]:
            cache.reach[0] = len(ids)  # before the first of several passes
        last, parts = None, []
        for start in range(0, len(ids), PREFILL_ROWS):
            chunk = ids[start : start + PREFILL_ROWS]
            count = len(chunk)
            rows = causal_rows(chunk, cache)
            final = start + count == len(ids)
            want = rows.slots.new_tensor([count - 1]) if final else None
            last = self.forward(rows, cache, taps=taps, want=want)
            parts.append(last.taps)
            cache.commit(rows.slots, [count], moved=[False])
        assert last is not None and last.logits is not None, "prefill needs at least one token"
        joined = {name: torch.cat([part[name] for part in parts]) for name in taps}
        return TargetOutput(logits=last.logits, taps=joined)

    def score(self, draft: Draft, cache: CacheManager, *, taps: Sequence[str] = ()) -> TargetOutput:
        """The verify pass: logits of every row of a draft whose slots are reserved."""
        rows = verify_rows(draft, cache, self.gives.max_positions)
        out = verified(self, rows, cache, draft, taps)
        assert out.logits is not None
        return output_of(out.logits, out.taps, draft)


def verified(
    target: Target, rows: Rows, cache: CacheManager, draft: Draft, taps: Sequence[str]
) -> Forward:
    """The pass over the rows of drafts that enter at the layer of this one: all their logits."""
    layers = None if draft.resume is None else (draft.resume.layer, target.num_layers)
    every = torch.arange(rows.positions.shape[0], device=target.device)
    return target.forward(rows, cache, layers=layers, taps=taps, want=every)


def output_of(logits: Tensor, taps: dict[str, Tensor], draft: Draft) -> TargetOutput:
    """Of a lane's rows: those of the tree, then the auxiliary ones."""
    n = draft.num_rows
    aux = None if draft.aux is None else logits[n:]
    return TargetOutput(logits=logits[:n], aux_logits=aux, taps=taps)


def causal_rows(tokens: Tensor, cache: CacheManager) -> Rows:
    """Rows of tokens [R] that follow the committed text in order; their slots are reserved here."""
    length, count = cache.lengths[0], tokens.shape[0]
    fresh = cache.reserve([count])
    return Rows(
        tokens=tokens,
        positions=fresh.columns + length,
        slots=fresh.slots,
        prefix=torch.full_like(fresh.columns, length),
    )


def verify_rows(draft: Draft, cache: CacheManager, max_positions: int | None) -> Rows:
    """Rows of a verify pass: the tree, then its auxiliary rows (whose slots are reserved here).

    Auxiliary rows may look past the last position that the model knows; they are held there. A live
    row sees the committed prefix, its ancestors and itself; a dead one only itself.
    """
    assert draft.slots is not None and draft.columns is not None
    length = cache.lengths[0]
    positions, slots = draft.depths + length, draft.slots
    prefix, sees = draft.alive * length, draft.ancestors()
    tokens, aux = draft.tokens, draft.aux
    if aux is not None:
        assert draft.resume is None, "auxiliary rows need every layer"
        fresh = cache.reserve([aux.tokens.shape[0]])
        slots = torch.cat([slots, fresh.slots])
        tokens = torch.cat([tokens, aux.tokens])
        last = None if max_positions is None else max_positions - 1
        positions = torch.cat([positions, aux.positions.clamp(0, last)])
        prefix = torch.cat([prefix, torch.full_like(fresh.columns, length)])
        # Tree rows never see auxiliary rows.
        tree = torch.cat([sees, sees.new_zeros((len(sees), len(aux.tokens)))], dim=1)
        sees = torch.cat([tree, aux.sees])
    if aux is not None or not draft.in_order:
        columns = draft.columns if aux is None else torch.cat([draft.columns, fresh.columns])
        wide = sees.new_zeros((len(sees), cache.extents[0] - length))
        sees = wide.index_copy_(1, columns, sees)
    return Rows(
        tokens=tokens if draft.resume is None else None,
        hidden=None if draft.resume is None else draft.resume.hidden,
        positions=positions,
        slots=slots,
        prefix=prefix,
        sees=sees,
    )


TARGETS: Registry[Target] = Registry("target", "specframe.target")
