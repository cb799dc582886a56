"""Weights laid out for the kernel, and linear layers that run on them."""

from __future__ import annotations

from collections.abc import Collection
from ctypes import byref
from typing import TypeGuard

import torch
from torch import Tensor, nn

from specframe.runtime.kernel.library import Matrix, library
from specframe.runtime.kernel.pages import MappedFiles

_ALIGNMENT = 64  # bytes: a line of the processor's cache


class Packed:
    """A weight [columns, k] in panels. half: its values are kept as bfloat16.

    Call it with x [..., k] float32 for x times the transposed weight, plus bias. Raises NoCompiler.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, half: bool = False) -> None:
        self.columns, self.k = weight.shape
        dtype = torch.bfloat16 if half else torch.float32
        panel = library().panel_columns()
        self._panels = _aligned(-(-self.columns // panel) * panel * self.k, dtype)
        self._panels.zero_()
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self.matrix = Matrix(
            panels=self._panels.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            columns=self.columns,
            k=self.k,
            half=int(half),
        )
        self._relay(weight.detach().to(dtype).contiguous(), back=False)

    def unpacked(self) -> Tensor:
        """[columns, k] a copy as it was, in the dtype it is kept in."""
        weight = self._panels.new_empty((self.columns, self.k))
        self._relay(weight, back=True)
        return weight

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        y = x.new_empty((*x.shape[:-1], self.columns))
        rows, threads = x.numel() // self.k, torch.get_num_threads()
        library().linear(byref(self.matrix), x.data_ptr(), y.data_ptr(), rows, threads)
        return y

    def _relay(self, weight: Tensor, *, back: bool) -> None:
        half = int(self._panels.dtype == torch.bfloat16)
        library().pack(
            weight.data_ptr(), self._panels.data_ptr(), self.columns, self.k, half, int(back)
        )


class PackedLinear(nn.Module):
    """A linear layer of float32 on a CPU, for inference, which holds its weight packed alone."""

    def __init__(self, layer: nn.Linear, *, half: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.packed = Packed(layer.weight, layer.bias, half=half)

    @property
    def weight(self) -> Tensor:
        """[out, in] a copy, for whoever looks at a model's weights."""
        return self.packed.unpacked()

    @property
    def bias(self) -> Tensor | None:
        return self.packed._bias

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(x)


def pack_linears(model: nn.Module, *, half: bool, but: Collection[nn.Module | None] = ()) -> None:
    """Replace every plain float32 linear layer on a CPU; each weight is released at once."""
    files = MappedFiles.now()
    # No list may hold the layers, or all weights would be there twice at the end.
    for parent in [one for one in model.modules() if not is_plain(one)]:
        for name in [name for name, _ in parent.named_children()]:
            layer: nn.Module = getattr(parent, name)
            if is_plain(layer) and not any(layer is one for one in but):
                setattr(parent, name, PackedLinear(layer, half=half))
                files.let_go(layer.weight)


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """A linear layer as torch has it, hooked by no one, float32, on a CPU."""
    if type(layer) is not nn.Linear or "forward" in vars(layer) or layer._forward_hooks:
        return False
    return layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _aligned(numel: int, dtype: torch.dtype) -> Tensor:
    """[numel] on a cache line's border."""
    spare = _ALIGNMENT // dtype.itemsize
    room = torch.empty(numel + spare, dtype=dtype)
    start = -room.data_ptr() % _ALIGNMENT // dtype.itemsize
    return room[start : start + numel]
