"""Several draft steps on the network's own states in one training pass.

While drafting, a network reads its own predictions; trained on true states alone, it never saw
them. So training runs it as drafting does: pair t is (state of token t, token t + 1) and predicts
token t + 2; at step i the pair is token t + 1 + i with the state that step i - 1 gave, at position
t + i, and it sees the true pairs up to t and its own earlier steps. HASS calls that context
alignment (arXiv 2408.15766), EAGLE-3 training-time test (arXiv 2503.01840).

A: pairs of a sequence that carry loss, the first of them at `UnrollWindow.index[:, 0]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.heads.layers import KeptView, View
from specframe.training.batches import Batch


@dataclass(frozen=True, kw_only=True)
class UnrollWindow:
    """The pairs of a batch whose predictions carry loss."""

    batch: Batch
    index: Tensor  # [B, A] numbers t of the pairs

    @classmethod
    def of(cls, batch: Batch) -> UnrollWindow:
        """The pairs from the first that predicts a weighted token to the last of each sequence."""
        weighted = batch.weight[:, 2:] > 0  # [B, L - 2] by pair
        first = weighted.int().argmax(1)
        counts = torch.where(weighted.any(1), batch.lengths - 2 - first, 0)
        size = max(int(counts.max()), 1)
        index = first[:, None] + torch.arange(size, device=first.device)
        return cls(batch=batch, index=index)

    def weight(self, step: int) -> Tensor:
        """[B, A] weight of the token that each pair predicts at `step`; 0 past the end."""
        return _taken(self.batch.weight, self.index + 2 + step, 0)

    def truth(self, step: int) -> Tensor:
        """[B, A] the true token that each pair predicts at `step`; 0 past the end."""
        return _taken(self.batch.tokens, self.index + 2 + step, 0)

    def inputs(self, step: int) -> Tensor:
        """[B, A] the token that each pair reads at `step`."""
        return _taken(self.batch.tokens, self.index + 1 + step, 0)

    def rows(self, values: Tensor) -> Tensor:
        """[B, A, ...] of values [B, L, ...], those of each pair."""
        index = self.index.clamp_max(values.shape[1] - 1)
        return values[torch.arange(len(values), device=index.device)[:, None], index]


def _taken(values: Tensor, index: Tensor, outside: int) -> Tensor:
    inside = index < values.shape[1]
    taken = values.gather(1, index.clamp_max(values.shape[1] - 1))
    return torch.where(inside, taken, torch.full_like(taken, outside))


class _AllSteps:
    """The keys and values of every step so far, which each later step sees."""

    def __init__(self) -> None:
        self._by_layer: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self._by_layer:
            before = self._by_layer[layer]
            keys = torch.cat([before[0], keys], dim=2)
            values = torch.cat([before[1], values], dim=2)
        self._by_layer[layer] = keys, values
        return keys, values


def unroll(
    net: Callable[[Tensor, Tensor, View], Tensor],
    embed: Callable[[Tensor], Tensor],
    window: UnrollWindow,
    states: Tensor,
    *,
    steps: int,
) -> Iterator[Tensor]:
    """[B, A, H] predicted states of steps 0, 1, ..., steps - 1, as a drafter would get them.

    states [B, L, H]: the true ones (a batch's features, through `net.fuse`).
    """
    tokens, index, steps_so_far = window.batch.tokens, window.index, _AllSteps()
    pairs = tokens.shape[1] - 1
    positions = torch.arange(pairs, device=tokens.device)
    view = KeptView(positions=positions, visible=None, keep=steps_so_far)
    predicted = window.rows(net(states[:, :-1], embed(tokens[:, 1:]), view))
    yield predicted
    size = index.shape[1]
    seen = positions <= index[:, :, None]  # [B, A, pairs]
    own = torch.eye(size, dtype=torch.bool, device=index.device).expand(len(index), -1, -1)
    for step in range(1, steps):
        seen = torch.cat([seen, own], dim=-1)
        view = KeptView(positions=index + step, visible=seen[:, None], keep=steps_so_far)
        predicted = net(predicted, embed(window.inputs(step)), view)
        yield predicted
