"""Linear layers on weights laid out by oneDNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ROWS = 16  # of passes over small trees


class OneDNN:
    """A float32 weight [columns, k] as oneDNN wants it for `rows`. Call it with x [..., k]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, rows: int = _ROWS) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
        self.bias = None if bias is None else bias.detach()

    @staticmethod
    def available() -> bool:
        """Whether this torch has oneDNN."""
        return torch.backends.mkldnn.is_available()

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self._weight.numel() * self._weight.element_size()

    def unpacked(self) -> Tensor:
        """[columns, k] a copy as it was."""
        return self._weight.to_dense()

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        return y


class OneDNNLinear(nn.Module):
    """A linear layer of float32 on a CPU, for inference, which holds its weight laid out alone."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.packed = OneDNN(layer.weight, layer.bias)

    @property
    def weight(self) -> Tensor:
        """[out, in] a copy, for whoever looks at a model's weights."""
        return self.packed.unpacked()

    @property
    def bias(self) -> Tensor | None:
        return self.packed.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(x)
