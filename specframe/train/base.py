"""The contract of a recipe: which head it makes, what its loss is, how right the head is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from specframe.errors import IncompatibleComponents
from specframe.heads.embeddings import target_head
from specframe.registry import Registry
from specframe.target.base import Target
from specframe.training.batches import Batch
from specframe.training.schedule import Schedule

FINAL = "final_postnorm"  # the tap that enters the target's head


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """What a head borrows from its target, and the tokens it may draft.

    embed [...] -> [..., H]; head [M, H] -> [M, Vd] logits of tokens ids [Vd] (None: all V).
    row_of [V]: where each token stands among them, -1 for none. table [Vd, H]: the head's matrix in
    the dtype of training, None for a head that is no plain product.
    """

    embed: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    ids: Tensor | None
    row_of: Tensor
    table: Tensor | None = None

    @classmethod
    def of(cls, target: Target, ids: Tensor | None, *, half: bool = False) -> Frozen:
        """Tables of a target, whose parameters stop taking gradients. half: `table` in bfloat16."""
        model = getattr(target, "model", None)
        if isinstance(model, nn.Module):
            model.requires_grad_(False).eval()
        row_of = torch.arange(target.vocab_size, device=target.device)
        if ids is not None:
            ids = ids.to(target.device)
            row_of = torch.full_like(row_of, -1)
            row_of[ids] = torch.arange(len(ids), device=target.device)
        head = target_head(target, ids, target.runtime)
        table = _table(head, target)
        if table is not None and half:
            table = table.bfloat16()
        return cls(embed=target.embed, head=head, ids=ids, row_of=row_of, table=table)

    def target_tokens(self, rows: Tensor) -> Tensor:
        """Target ids of rows of the draft vocabulary."""
        return rows if self.ids is None else self.ids[rows]


@torch.no_grad()
def _table(head: Callable[[Tensor], Tensor], target: Target) -> Tensor | None:
    """[Vd, H] the matrix of a head that is nothing else, read through the head itself."""
    device, dtype = target.device, target.dtype
    size = target.embed(torch.zeros(1, dtype=torch.long, device=device)).shape[-1]
    table = head(torch.eye(size, dtype=dtype, device=device)).t().contiguous()
    probe = 100.0 * torch.ones(1, size, dtype=dtype, device=device)
    expected = head(probe)
    error = (probe @ table.t() - expected).abs().max()
    return table if bool(error <= 0.02 * expected.abs().max()) else None


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """What a head guesses along the true text: [B, A, D, K] tokens, best first, at depths 1 .. D.

    predicted [B, A, D] the true tokens; counted [B, A, D] bool: the answer has one there. first
    [B]: the row whose prediction follows the answer's first token.
    """

    tokens: Tensor
    predicted: Tensor
    counted: Tensor
    first: Tensor


class Recipe(ABC):
    """A kind of head and its loss. Parameters of the constructor are the recipe's YAML keys.

    prompt_weight: weight of the prompt's tokens where an answer's have 1. vocabulary: size of the
    draft vocabulary, None for the target's; min_coverage: least share of held-out answer tokens
    that it must have. needs_vocabulary: the head has rows of its own, so ids are always chosen.
    """

    drafter: ClassVar[str]  # the word that decodes with the exported head
    prompt_weight: float = 0.0
    vocabulary: int | None = None
    min_coverage: float = 0.0
    needs_vocabulary: ClassVar[bool] = False

    @abstractmethod
    def taps(self, target: Target) -> tuple[str, ...]:
        """Hidden states that batches carry, by name."""

    @abstractmethod
    def make(self, target: Target, ids: Tensor | None) -> nn.Module:
        """A fresh head; torch's generator is seeded. ids [Vd]: the draft vocabulary, None: all."""

    @abstractmethod
    def load(self, path: str) -> nn.Module:
        """A trained head of this kind: hub name, folder or file. Raises ConfigError."""

    def head_in(self, net: Any) -> nn.Module:
        """What of a module in training is the head that `load` gives."""
        head: nn.Module = net
        return head

    def started(self, net: Any) -> None:
        """A module in training has just taken over the weights that `load` gave."""

    def groups(self, net: nn.Module, schedule: Schedule) -> list[dict[str, Any]]:
        """Parameter groups of the optimiser."""
        return [{"params": [one for one in net.parameters() if one.requires_grad]}]

    def original(self) -> AbstractContextManager[None]:
        """A context in which the target is as it was before training."""
        return nullcontext()

    def release(self) -> None:
        """Leave the target as it was found; the head is not used after this."""

    @abstractmethod
    def losses(self, net: Any, frozen: Frozen, batch: Batch, progress: float) -> dict[str, Tensor]:
        """`loss`, which is minimised, and its parts. progress: the share of steps that are done."""

    @abstractmethod
    def guesses(self, net: Any, frozen: Frozen, batch: Batch, *, depth: int, top: int) -> Guesses:
        """What the head would draft at each place of the answers, teacher forced."""

    @abstractmethod
    def export(self, net: Any, folder: Path, *, target: Target) -> None:
        """Write the head in a published layout."""


def text_config(target: Target) -> Any:
    """The configuration of a target's language model. IncompatibleComponents if it has none."""
    model = getattr(target, "model", None)
    if model is None:
        raise IncompatibleComponents(
            f"task=train needs a model of transformers, target={target.name} is none; use target=hf"
        )
    return model.config.get_text_config()


RECIPES: Registry[Recipe] = Registry("train", "specframe.train")
