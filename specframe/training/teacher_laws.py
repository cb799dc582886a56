"""The target's laws that predictions are held against, over the vocabulary or a sample of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from specframe.train.base import Frozen
from specframe.training.batches import Batch

_CHUNK = 128  # rows whose logits over the whole vocabulary are held at a time
_LIKELY = 10  # of the target's tokens at a row, those that are never left out of a sample


@dataclass(frozen=True, kw_only=True)
class TeacherLaws:
    """What predictions are held against, at every position whose next token has weight.

    shares [M, S]: c(v) of the cross entropy -sum_v c(v) log q(v); place [B, L]: the row that
    belongs to what follows token u, -1 where there is none. columns [S]: rows of the draft
    vocabulary that S stands for, None for all of them; raised [S]: what q's logits get there.
    """

    shares: Tensor
    place: Tensor
    columns: Tensor | None = None
    raised: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        batch: Batch,
        frozen: Frozen,
        features: Tensor,
        *,
        soft: float = 1.0,
        top: tuple[int, float] = (0, 0.0),
        negatives: int | None = None,
    ) -> TeacherLaws:
        """c = soft * p, and for top = (count, weight) that weight times p more for the target's
        `count` likeliest tokens.

        features [B, L, H] enter the target's head. negatives: q is normed over the tokens that are
        likely somewhere in the batch and this many others, drawn evenly, each of which stands for
        as many as were left out (sampled softmax, arXiv 1412.2007); None: over the vocabulary.
        """
        wanted = torch.zeros_like(batch.weight, dtype=torch.bool)
        wanted[:, 1:-1] = batch.weight[:, 2:] > 0
        place = torch.where(wanted, wanted.flatten().cumsum(0).view(wanted.shape) - 1, -1)
        states, following = features[wanted], batch.tokens.roll(-1, 1)[wanted]
        with torch.autocast(features.device.type, enabled=False):
            if negatives is None or frozen.table is None:
                probs, columns, raised = _wide(frozen.head(states)).softmax(-1), None, None
            else:
                mass, kept = _read(states, frozen, following, max(top[0], _LIKELY))
                columns, raised = _sampled(kept, len(frozen.table), negatives)
                rows = functional.linear(states, frozen.table[columns].to(states.dtype))
                probs = (_wide(rows) - mass[:, None]).exp()
        best, at = probs.topk(min(top[0], probs.shape[-1]), dim=-1)
        # In place: this table is the largest thing in memory.
        shares = probs.mul_(soft).scatter_add_(-1, at, top[1] * best)
        return cls(shares=shares, place=place, columns=columns, raised=raised)

    def sharpened(self, batch: Batch, frozen: Frozen, hard: float) -> TeacherLaws:
        """The same with `hard` more for the token that did follow, where the vocabulary has it."""
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
        """[S, H] those of a head's rows [Vd, H] that the shares are over."""
        return rows if self.columns is None else rows[self.columns]

    def logits(self, states: Tensor, rows: Tensor) -> Tensor:
        """[M, S] of states [M, H] by a head's rows [Vd, H]."""
        found = functional.linear(states, self.table(rows))
        return found if self.raised is None else found + self.raised


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _read(states: Tensor, frozen: Frozen, following: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """[M] log of the sum of exponentials, and the rows of all likely tokens and those that
    followed."""
    mass, likely = [], []
    for part in states.split(_CHUNK):
        logits = _wide(frozen.head(part))
        mass.append(logits.logsumexp(-1))
        likely.append(logits.topk(min(count, logits.shape[-1]), dim=-1).indices.flatten())
    rows = frozen.row_of[following]
    return torch.cat(mass), torch.cat([*likely, rows[rows >= 0]]).unique()


def _sampled(kept: Tensor, size: int, negatives: int) -> tuple[Tensor, Tensor]:
    """Columns: `kept` and others of `size`, drawn by torch's generator; and their raised logits."""
    is_other = torch.ones(size, dtype=torch.bool, device=kept.device)
    is_other[kept] = False
    others = is_other.nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), device=kept.device)[:negatives]]
    raised = torch.zeros(len(kept) + len(drawn), device=kept.device)
    if len(drawn):
        raised[len(kept) :] = math.log(len(others) / len(drawn))
    return torch.cat([kept, drawn]), raised
