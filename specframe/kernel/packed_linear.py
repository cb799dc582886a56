"""Weights laid out for the kernel, and linear layers that run on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ctypes import byref
from typing import Literal, TypeGuard, get_args

import torch
from torch import Tensor, nn

from specframe.kernel.library import Matrix, library
from specframe.kernel.mapped_files import MappedFiles
from specframe.kernel.onednn import OneDNNLinear
from specframe.kernel.reordered_linear import ReorderedLinear

Precision = Literal["float32", "bfloat16", "int8"]  # what a weight is kept as
_ROWS = 1024  # of a weight, rounded at once
_ALIGNMENT = 64  # bytes: a line of the processor's cache


class PackedMatrix:
    """A weight [columns, k] in panels. kept: in what; int8 is symmetric, a scale an output column.

    Call it with x [..., k] for x times the transposed weight, plus bias, in float32. Raises
    NoCompiler.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, precision: Precision = "float32"
    ) -> None:
        assert precision in get_args(Precision)
        self.columns, self.k = weight.shape
        dtype: torch.dtype = getattr(torch, precision)
        panel = library().panel_columns()
        self._panels = _aligned(-(-self.columns // panel) * panel * self.k, dtype)
        self._panels.zero_()
        self.bias = None if bias is None else bias.detach().float().contiguous()
        rounded, self._scales = _rounded(weight.detach(), dtype)
        self.matrix = Matrix(
            panels=self._panels.data_ptr(),
            scales=None if self._scales is None else self._scales.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            columns=self.columns,
            k=self.k,
            bytes=dtype.itemsize,
        )
        self._relay(rounded, back=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as it is kept, without the padding of its last panel."""
        scales = 0 if self._scales is None else self._scales.nbytes
        return self.columns * self.k * self._panels.itemsize + scales

    def unpacked(self) -> Tensor:
        """[columns, k] a copy of the weight that it computes with, float32 or bfloat16."""
        weight = self._panels.new_empty((self.columns, self.k))
        self._relay(weight, back=True)
        return weight if self._scales is None else weight.float() * self._scales[:, None]

    def __call__(self, x: Tensor) -> Tensor:
        x = x.float().contiguous()
        y = x.new_empty((*x.shape[:-1], self.columns))
        rows, threads = x.numel() // self.k, torch.get_num_threads()
        library().linear(byref(self.matrix), x.data_ptr(), y.data_ptr(), rows, threads)
        return y

    def _relay(self, weight: Tensor, *, back: bool) -> None:
        source, size = weight.data_ptr(), weight.itemsize
        library().pack(source, self._panels.data_ptr(), self.columns, self.k, size, int(back))


class PackedLinear(ReorderedLinear):
    """Laid out in panels."""

    packed: PackedMatrix

    def __init__(self, layer: nn.Linear, *, precision: Precision) -> None:
        super().__init__(layer, PackedMatrix(layer.weight, layer.bias, precision=precision))


def weight_bytes(layer: nn.Linear | ReorderedLinear) -> int:
    """Bytes of a layer's weight as it is kept, scales included."""
    return layer.packed.nbytes if isinstance(layer, ReorderedLinear) else layer.weight.nbytes


def pack_linears(
    model: nn.Module,
    *,
    precision: Precision,
    kernels: Mapping[tuple[int, ...], str] | None = None,
    excluded: Collection[nn.Module | None] = (),
) -> None:
    """Replace every plain float32 linear layer on a CPU; each weight is released at once.

    kernels: by the shape of a weight, own, onednn, or torch, which is the layer as it is; None:
    all are our own.
    """
    files = MappedFiles.of_this_process()
    # No list may hold the layers, or all weights would be there twice at the end.
    for parent in [one for one in model.modules() if not is_plain(one)]:
        for name in [name for name, _ in parent.named_children()]:
            layer: nn.Module = getattr(parent, name)
            if not is_plain(layer) or any(layer is one for one in excluded):
                continue
            kernel = "own" if kernels is None else kernels[tuple(layer.weight.shape)]
            if kernel == "torch":
                continue
            own = kernel == "own"
            setattr(
                parent,
                name,
                PackedLinear(layer, precision=precision) if own else OneDNNLinear(layer),
            )
            files.release(layer.weight)


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """A linear layer as torch has it, hooked by no one, float32, on a CPU."""
    if type(layer) is not nn.Linear or "forward" in vars(layer) or layer._forward_hooks:
        return False
    return layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _rounded(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """(weight in dtype, scales [columns] of int8, else None)."""
    if dtype != torch.int8:
        return weight.to(dtype).contiguous(), None
    scales = torch.linalg.vector_norm(weight.float(), torch.inf, dim=1).clamp_min(1e-30) / 127
    rounded = torch.empty(weight.shape, dtype=dtype)
    for start in range(0, len(weight), _ROWS):  # a whole one in float32 would double the peak
        some = slice(start, start + _ROWS)
        rounded[some] = (weight[some] / scales[some, None]).round_()
    return rounded, scales


def _aligned(numel: int, dtype: torch.dtype) -> Tensor:
    """[numel] on a cache line's border."""
    spare = _ALIGNMENT // dtype.itemsize
    room = torch.empty(numel + spare, dtype=dtype)
    start = -room.data_ptr() % _ALIGNMENT // dtype.itemsize
    return room[start : start + numel]
