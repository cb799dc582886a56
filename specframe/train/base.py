"""The contract of a recipe: which head it makes, what its loss is, how right the head is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from specframe.drafter.net.tables import target_head
from specframe.errors import IncompatibleComponents
from specframe.registry import Registry
from specframe.target.base import Target
from specframe.train.batches import Batch
from specframe.train.schedule import Schedule

FINAL = "final_postnorm"  # the tap that enters the target's head


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """What a head borrows from its target, and the tokens it may draft.

    embed [...] -> [..., H]; head [M, H] -> [M, Vd] logits of tokens ids [Vd] (None: all V).
    row_of [V]: where each token stands among them, -1 for none.
    """

    embed: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    ids: Tensor | None
    row_of: Tensor

    @classmethod
    def of(cls, target: Target, ids: Tensor | None) -> Frozen:
        """Tables of a target, whose parameters stop taking gradients."""
        model = getattr(target, "model", None)
        if isinstance(model, nn.Module):
            model.requires_grad_(False).eval()
        row_of = torch.arange(target.vocab_size, device=target.device)
        if ids is not None:
            ids = ids.to(target.device)
            row_of = torch.full_like(row_of, -1)
            row_of[ids] = torch.arange(len(ids), device=target.device)
        return cls(embed=target.embed, head=target_head(target, ids), ids=ids, row_of=row_of)

    def target_tokens(self, rows: Tensor) -> Tensor:
        """Target ids of rows of the draft vocabulary."""
        return rows if self.ids is None else self.ids[rows]


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

    def groups(self, net: nn.Module, schedule: Schedule) -> list[dict[str, Any]]:
        """Parameter groups of the optimiser."""
        return [{"params": [one for one in net.parameters() if one.requires_grad]}]

    @abstractmethod
    def losses(self, net: Any, frozen: Frozen, batch: Batch) -> dict[str, Tensor]:
        """`loss`, which is minimised, and its parts."""

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
