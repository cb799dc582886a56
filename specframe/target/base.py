"""The contract of a target: one primitive, `forward`, and the two passes the loop is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.registry import Registry
from specframe.runtime.base import Runtime, Tensors
from specframe.types import Draft, Gives, Rows, TargetOutput

PREFILL_ROWS = 2048  # rows of one prefill pass; bounds the mask and the activations


class Tokenizer(Protocol):
    """What the framework asks of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Ids of a raw text, with the special tokens that the model starts a text with."""

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a piece of text, without any special token."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a conversation, up to where the answer begins."""

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


class Target(ABC):
    """A causal language model whose text is wanted (or that drafts for another one).

    Taps: `embed` (what enters block 0), `resid:i` (what enters block i; resid:L leaves the last),
    `final_prenorm` (= resid:L) and `final_postnorm` (what enters the output head).
    """

    could_give: ClassVar[Gives]  # what the class can do, known before weights are loaded
    gives: Gives
    vocab_size: int
    num_layers: int
    device: torch.device
    dtype: torch.dtype
    name: str
    eos_ids: tuple[int, ...]
    tokenizer: Tokenizer | None
    runtime: Runtime

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
        last, parts = None, []
        for start in range(0, len(ids), PREFILL_ROWS):
            chunk = ids[start : start + PREFILL_ROWS]
            count, base = len(chunk), cache.length
            slots = cache.reserve(count)
            positions = torch.arange(base, base + count, device=self.device)
            columns = torch.arange(cache.width, device=self.device)
            rows = Rows(
                tokens=chunk,
                positions=positions,
                slots=slots,
                visible=columns[None, :] <= positions[:, None],
                causal=base == 0 and cache.width == count,
            )
            final = start + count == len(ids)
            want = slots.new_tensor([count - 1]) if final else None
            last = self.forward(rows, cache, taps=taps, want=want)
            parts.append(last.taps)
            cache.commit(slots, count, moved=False)
        assert last is not None and last.logits is not None, "prefill needs at least one token"
        joined = {name: torch.cat([part[name] for part in parts]) for name in taps}
        return TargetOutput(logits=last.logits, taps=joined)

    def score(self, draft: Draft, cache: CacheManager, *, taps: Sequence[str] = ()) -> TargetOutput:
        """The verify pass: logits of every row of a draft whose slots are reserved."""
        rows = verify_rows(draft, cache, self.gives.max_positions)
        layers = None if draft.resume is None else (draft.resume.layer, self.num_layers)
        every = torch.arange(rows.positions.shape[0], device=self.device)
        out = self.forward(rows, cache, layers=layers, taps=taps, want=every)
        assert out.logits is not None
        n = draft.num_rows
        return TargetOutput(
            logits=out.logits[:n],
            aux_logits=None if draft.aux is None else out.logits[n:],
            taps=out.taps,
        )


def verify_rows(draft: Draft, cache: CacheManager, max_positions: int | None) -> Rows:
    """Rows of a verify pass: the tree, then its auxiliary rows (whose slots are reserved here).

    Auxiliary rows may look past the last position that the model knows; they are held there. A live
    row sees the committed prefix, its ancestors and itself; a dead one only itself.
    """
    assert draft.slots is not None
    tokens, slots, aux = draft.tokens, draft.slots, draft.aux
    if aux is not None:  # these widen what every row sees
        slots = torch.cat([slots, cache.reserve(aux.tokens.shape[0])])
    positions, visible = _tree_rows(draft, draft.slots, cache)
    if aux is not None:
        assert draft.resume is None, "auxiliary rows need every layer"
        tokens = torch.cat([tokens, aux.tokens])
        last = None if max_positions is None else max_positions - 1
        positions = torch.cat([positions, aux.positions.clamp(0, last)])
        seen = visible.new_zeros((len(aux.tokens), cache.width))
        seen[:, : cache.length] = True
        visible = torch.cat([visible, seen.index_copy_(1, slots, aux.sees)])
    if draft.resume is not None:
        return Rows(hidden=draft.resume.hidden, positions=positions, slots=slots, visible=visible)
    return Rows(tokens=tokens, positions=positions, slots=slots, visible=visible)


def _tree_rows(draft: Draft, slots: Tensor, cache: CacheManager) -> tuple[Tensor, Tensor]:
    """Positions [N] and what is visible [N, S], in one launch where that counts."""
    width, launcher = cache.width, cache.launcher
    if launcher is not None:
        width = launcher.columns(width, cache.positions.shape[0])

    def see(fed: Tensors, held: Tensors) -> Tensors:
        depths, parents, alive, slots, base = fed
        columns = torch.arange(width, device=base.device)
        visible = (columns < base) & alive[:, None]
        above = replace(draft, parents=parents).ancestors()
        return base + depths, visible.index_copy_(1, slots, above)

    key = ("rows", draft.num_rows, draft.depth, width)
    launch = see if launcher is None else launcher.wrap(see, key)
    fed = (draft.depths, draft.parents, draft.alive, slots, cache.length_tensor)
    positions, visible = launch(fed, ())
    return positions, visible[:, : cache.width]


TARGETS: Registry[Target] = Registry("target", "specframe.target")
