"""A linear layer over a weight that is laid out anew, whoever lays it out."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class ReorderedWeight(Protocol):
    """A weight [columns, k] as a kernel wants it. Call it with x [..., k]."""

    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        """Of the weight as it is kept."""

    def unpacked(self) -> Tensor:
        """[columns, k] a copy of the weight that it computes with."""

    def __call__(self, x: Tensor) -> Tensor:
        """x times the transposed weight, plus bias."""


class ReorderedLinear(nn.Module):
    """A linear layer of float32 on a CPU, for inference, which holds its weight laid out alone."""

    def __init__(self, layer: nn.Linear, packed: ReorderedWeight) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.packed = packed

    @property
    def weight(self) -> Tensor:
        """[out, in] a copy, for whoever looks at a model's weights."""
        return self.packed.unpacked()

    @property
    def bias(self) -> Tensor | None:
        return self.packed.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(x)
