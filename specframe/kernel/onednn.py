"""Linear layers on weights that oneDNN has reordered for itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specframe.kernel.reordered_linear import ReorderedLinear

_ROWS = 16  # of passes over small trees


class OneDNN:
    """A float32 weight [columns, k] in oneDNN's order for `rows` rows. Call it with x [..., k]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, rows: int = _ROWS) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
        self.bias = None if bias is None else bias.detach()

    @staticmethod
    def available() -> bool:
        """Whether this torch has oneDNN."""
        return torch.backends.mkldnn.is_available()

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as it lies in memory."""
        return self._weight.numel() * self._weight.element_size()

    def unpacked(self) -> Tensor:
        """[columns, k] a copy in plain order."""
        return self._weight.to_dense()

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
        return y


class OneDNNLinear(ReorderedLinear):
    """A linear layer over a weight that oneDNN has reordered."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer, OneDNN(layer.weight, layer.bias))
