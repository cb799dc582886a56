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
from specframe.runtime.base import Plain, Runtime, Weights
from specframe.target.base import Target
from specframe.training.batches import Batch
from specframe.training.schedule import Schedule

FINAL = "final_postnorm"  # the tap that enters the target's head


@dataclass(frozen=True, kw_only=True)
class FrozenTarget:
    """The parts of a frozen target that a head reads, and the tokens that it may draft."""

    embed: Callable[[Tensor], Tensor]  # tokens [...] -> [..., H]
    head: Callable[[Tensor], Tensor]  # states [M, H] -> logits [M, Vd] of the tokens `ids`
    ids: Tensor | None  # [Vd] the draft vocabulary; None: all V
    row_of: Tensor  # [V] the row of each token in the draft vocabulary; -1 for none
    # [Vd, H] the head's matrix in the dtype of training; None for a head that is no plain product.
    table: Tensor | None = None

    @classmethod
    def of(cls, target: Target, ids: Tensor | None, *, half: bool = False) -> FrozenTarget:
        """The tables of a target, whose parameters it freezes. half: `table` in bfloat16."""
        model = getattr(target, "model", None)
        if isinstance(model, nn.Module):
            model.requires_grad_(False).eval()
        row_of = torch.arange(target.vocab_size, device=target.device)
        if ids is not None:
            ids = ids.to(target.device)
            row_of = torch.full_like(row_of, -1)
            row_of[ids] = torch.arange(len(ids), device=target.device)
        head = target_head(target, ids, Runtime(launch=Plain(), weights=Weights()))
        table = _table(head, target)
        if table is not None and half:
            table = table.bfloat16()
        return cls(embed=target.embed, head=head, ids=ids, row_of=row_of, table=table)

    def target_tokens(self, rows: Tensor) -> Tensor:
        """Target ids of rows of the draft vocabulary."""
        return rows if self.ids is None else self.ids[rows]


@torch.no_grad()
def _table(head: Callable[[Tensor], Tensor], target: Target) -> Tensor | None:
    """[Vd, H] the matrix of a linear head, read through the head; None if it is not linear."""
    device, dtype = target.device, target.dtype
    size = target.embed(torch.zeros(1, dtype=torch.long, device=device)).shape[-1]
    table = head(torch.eye(size, dtype=dtype, device=device)).t().contiguous()
    probe = 100.0 * torch.ones(1, size, dtype=dtype, device=device)
    expected = head(probe)
    error = (probe @ table.t() - expected).abs().max()
    return table if bool(error <= 0.02 * expected.abs().max()) else None


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """What a head guesses along the true text, at depths 1 .. D and K guesses at each."""

    tokens: Tensor  # [B, A, D, K] best first
    truth: Tensor  # [B, A, D] the true tokens
    is_counted: Tensor  # [B, A, D] bool: the answer has a token there
    first: Tensor  # [B] the row whose prediction follows the answer's first token


class Recipe(ABC):
    """A kind of head and its loss; the constructor's parameters are keys of the recipe's YAML.

    A training calls `taps`, `make` (and `load`, `started` if it starts from a head), then `losses`
    at every step, `guesses` at every validation, and `export` and `release` at the end.
    """

    drafter: ClassVar[str]  # the word that decodes with the exported head
    needs_vocabulary: ClassVar[bool] = False  # the head has rows of its own, so ids are chosen
    prompt_weight: float = 0.0  # of the prompt's tokens, where the answer's have 1
    vocabulary: int | None = None  # size of the draft vocabulary; None for the target's
    min_coverage: float = 0.0  # least share of held-out answer tokens that the vocabulary has

    @abstractmethod
    def taps(self, target: Target) -> tuple[str, ...]:
        """Names of the hidden states that batches carry."""

    @abstractmethod
    def make(self, target: Target, ids: Tensor | None) -> nn.Module:
        """A fresh head; torch's generator was seeded. ids [Vd]: the draft vocabulary, None: all."""

    @abstractmethod
    def load(self, path: str) -> nn.Module:
        """A trained head of this kind: hub name, folder or file. Raises ConfigError."""

    def head_in(self, net: Any) -> Any:
        """The part of a module in training that is a head as `load` gives it."""
        return net

    def started(self, net: Any) -> None:
        """Adjust a module in training that has just taken over the weights of a trained head."""

    def groups(self, net: nn.Module, schedule: Schedule) -> list[dict[str, Any]]:
        """The optimiser's parameter groups."""
        return [{"params": [weight for weight in net.parameters() if weight.requires_grad]}]

    def original(self) -> AbstractContextManager[None]:
        """A context in which the target has the weights that it had before training."""
        return nullcontext()

    def release(self) -> None:
        """Give the target back as it was before training; the head is not used after this."""

    @abstractmethod
    def losses(
        self, net: Any, frozen: FrozenTarget, batch: Batch, progress: float
    ) -> dict[str, Tensor]:
        """`loss`, which is minimised, and its parts for the logs. progress: share of steps done."""

    @abstractmethod
    def guesses(
        self, net: Any, frozen: FrozenTarget, batch: Batch, *, depth: int, top: int
    ) -> Guesses:
        """What the head would draft at each place of the answers, with the true text before it."""

    @abstractmethod
    def export(self, net: Any, folder: Path, *, target: Target) -> None:
        """Write the head in a published layout."""


def text_config(target: Target) -> Any:
    """The configuration of a target's language model. Raises IncompatibleComponents without one."""
    model = getattr(target, "model", None)
    if model is None:
        raise IncompatibleComponents(
            f"task=train needs a model of transformers, target={target.name} is none; use target=hf"
        )
    return model.config.get_text_config()


RECIPES: Registry[Recipe] = Registry("train", "specframe.train")
