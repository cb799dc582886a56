"""A linear layer over a weight in another order of memory, whichever kernel put it in order."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class ReorderedWeight(Protocol):
    """A weight [columns, k] in the order in which a kernel reads it. Call it with x [..., k]."""

    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as it lies in memory."""

    def unpacked(self) -> Tensor:
        """[columns, k] a copy, in plain order, of the weight that it computes with."""

    def __call__(self, x: Tensor) -> Tensor:
        """x times the transposed weight, plus bias."""


class ReorderedLinear(nn.Module):
    """A float32 linear layer on a CPU, for inference, with its weight in a kernel's order only."""

    def __init__(self, layer: nn.Linear, packed: ReorderedWeight) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.packed = packed

    @property
    def weight(self) -> Tensor:
        """[out, in] a copy in plain order, for code that looks at a model's weights."""
        return self.packed.unpacked()

    @property
    def bias(self) -> Tensor | None:
        return self.packed.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(x)
