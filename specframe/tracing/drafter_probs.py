"""What the drafters said of the nodes of a draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.types import Draft, DrawCall


@dataclass(frozen=True)
class DrafterProbs:
    """probs [N] float64: probability of each row's token by the drafter's law, or by its score; NaN
    where it gave none. calls [N]: number of the call that made the row, -1 for none."""

    probs: Tensor
    calls: Tensor


def drafter_probs(draft: Draft) -> DrafterProbs:
    """Gathered on the device, for all rows of a draft."""
    size, device = draft.num_rows, draft.tokens.device
    # One place more than rows, for records that met no row.
    probs = torch.full((size + 1,), torch.nan, dtype=torch.float64, device=device)
    calls = torch.full((size + 1,), -1, dtype=torch.long, device=device)
    # Of several records that met in a row, the first one made it: it comes last here.
    for number in range(len(draft.calls) - 1, -1, -1):
        call = draft.calls[number]
        rows = draft.row_of[call.nodes]
        rows = torch.where((rows >= 0) & (call.tokens >= 0), rows, size).reshape(-1)
        calls = calls.index_fill(0, rows, number)
        probs = probs.index_copy(0, rows, _probs(call).reshape(-1))
    return DrafterProbs(probs[:size], calls[:size])


def _probs(call: DrawCall) -> Tensor:
    """[F, K] float64."""
    if call.law is not None and call.indices is not None:
        return call.law.gather(1, call.indices).double()
    if call.scores is None:
        return torch.full(
            call.tokens.shape, torch.nan, dtype=torch.float64, device=call.tokens.device
        )
    return call.scores.double().exp()
