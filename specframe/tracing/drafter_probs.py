"""How likely the drafters held the nodes of a draft to be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.types import Draft, DrawCall


@dataclass(frozen=True)
class DrafterProbs:
    """By row of a draft: how likely its drafter held the row's token to be."""

    probs: Tensor  # [N] float64 by the drafter's law, or else by its score; NaN where it gave none
    calls: Tensor  # [N] number of the draw call that made the row, -1 for none


def drafter_probs(draft: Draft) -> DrafterProbs:
    """Gather the probabilities of all rows of a draft, on the device."""
    size, device = draft.num_rows, draft.tokens.device
    # One entry more than rows, which takes what met no row.
    probs = torch.full((size + 1,), torch.nan, dtype=torch.float64, device=device)
    calls = torch.full((size + 1,), -1, dtype=torch.long, device=device)
    # Of several calls that met in a row, the first one made it, so it is written last.
    for number in range(len(draft.calls) - 1, -1, -1):
        call = draft.calls[number]
        rows = draft.row_of[call.nodes]
        rows = torch.where((rows >= 0) & (call.tokens >= 0), rows, size).reshape(-1)
        calls = calls.index_fill(0, rows, number)
        probs = probs.index_copy(0, rows, _probs(call).reshape(-1))
    return DrafterProbs(probs[:size], calls[:size])


def _probs(call: DrawCall) -> Tensor:
    """[F, K] float64, NaN where the call has neither a law nor scores."""
    if call.law is not None and call.indices is not None:
        return call.law.gather(1, call.indices).double()
    if call.scores is None:
        return torch.full(
            call.tokens.shape, torch.nan, dtype=torch.float64, device=call.tokens.device
        )
    return call.scores.double().exp()
