"""The target's laws, against which predictions are measured.

Over a large vocabulary most of the cost is the normaliser of the draft's law. With `negatives` it
is estimated on a sample: all likely tokens, and a few others that each stand for many (sampled
softmax, arXiv 1412.2007). Shares of the likely tokens stay exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from specframe.train.base import FrozenTarget
from specframe.training.batches import Batch

_CHUNK = 128  # rows whose logits over the whole vocabulary exist at a time
_LIKELY = 10  # likeliest tokens of a row that are never left out of a sample


@dataclass(frozen=True, kw_only=True)
class TeacherLaws:
    """The laws of a batch, at every position whose next token has weight.

    A prediction with law q has the cross entropy -sum_v c(v) log q(v). S: the columns of the laws.
    """

    shares: Tensor  # [M, S] c(v)
    place: Tensor  # [B, L] the row of the law after token u; -1 where there is none
    columns: Tensor | None = None  # [S] rows of the draft vocabulary; None for all of them
    offsets: Tensor | None = None  # [S] added to q's logits; log of how many tokens each stands for

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        batch: Batch,
        frozen: FrozenTarget,
        features: Tensor,
        *,
        soft: float = 1.0,
        top: tuple[int, float] = (0, 0.0),
        negatives: int | None = None,
    ) -> TeacherLaws:
        """c = soft * p, plus weight * p for the target's `count` likeliest tokens.

        features [B, L, H] enter the target's head. top: (count, weight). negatives: q is normed
        over the tokens that are likely somewhere in the batch and over this many others, drawn
        evenly, each of which stands for as many as were left out; None: over the vocabulary.
        """
        wanted = torch.zeros_like(batch.weight, dtype=torch.bool)
        wanted[:, 1:-1] = batch.weight[:, 2:] > 0
        place = torch.where(wanted, wanted.flatten().cumsum(0).view(wanted.shape) - 1, -1)
        states, following = features[wanted], batch.tokens.roll(-1, 1)[wanted]
        with torch.autocast(features.device.type, enabled=False):
            if negatives is None or frozen.table is None:
                probs, columns, offsets = _wide(frozen.head(states)).softmax(-1), None, None
            else:
                mass, likely = _mass_and_likely(states, frozen, following, max(top[0], _LIKELY))
                columns, offsets = _sampled(likely, len(frozen.table), negatives)
                rows = functional.linear(states, frozen.table[columns].to(states.dtype))
                probs = (_wide(rows) - mass[:, None]).exp()
        best, at = probs.topk(min(top[0], probs.shape[-1]), dim=-1)
        # In place: this table is the largest thing in memory.
        shares = probs.mul_(soft).scatter_add_(-1, at, top[1] * best)
        return cls(shares=shares, place=place, columns=columns, offsets=offsets)

    def with_followed_token(self, batch: Batch, frozen: FrozenTarget, hard: float) -> TeacherLaws:
        """These laws with `hard` more for the token that did follow, if the vocabulary has it."""
        sequence, token = (self.place >= 0).nonzero(as_tuple=True)
        rows = frozen.row_of[batch.tokens[sequence, token + 1]]
        inside = (rows >= 0).to(self.shares.dtype)
        rows = rows.clamp_min(0)
        if self.columns is not None:
            column = torch.zeros_like(frozen.row_of)
            column[self.columns] = torch.arange(len(self.columns), device=column.device)
            rows = column[rows]
        more = self.shares.scatter_add(-1, rows[:, None], hard * inside[:, None])
        return replace(self, shares=more)

    def table(self, rows: Tensor) -> Tensor:
        """[S, H] the rows of an output head [Vd, H] that the columns stand for."""
        return rows if self.columns is None else rows[self.columns]

    def logits(self, states: Tensor, rows: Tensor) -> Tensor:
        """[M, S] of states [M, H] by a head's rows [Vd, H]."""
        logits = functional.linear(states, self.table(rows))
        return logits if self.offsets is None else logits + self.offsets


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _mass_and_likely(
    states: Tensor, frozen: FrozenTarget, following: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """[M] log of the sum of exponentials of each state, and the vocabulary's rows of all tokens
    that are likely somewhere or did follow."""
    mass, likely = [], []
    for part in states.split(_CHUNK):
        logits = _wide(frozen.head(part))
        mass.append(logits.logsumexp(-1))
        likely.append(logits.topk(min(count, logits.shape[-1]), dim=-1).indices.flatten())
    rows = frozen.row_of[following]
    return torch.cat(mass), torch.cat([*likely, rows[rows >= 0]]).unique()


def _sampled(likely: Tensor, size: int, negatives: int) -> tuple[Tensor, Tensor]:
    """Columns (`likely`, and others of `size` drawn by torch's generator) and their offsets."""
    is_other = torch.ones(size, dtype=torch.bool, device=likely.device)
    is_other[likely] = False
    others = is_other.nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), device=likely.device)[:negatives]]
    offsets = torch.zeros(len(likely) + len(drawn), device=likely.device)
    if len(drawn):
        offsets[len(likely) :] = math.log(len(others) / len(drawn))
    return torch.cat([likely, drawn]), offsets
