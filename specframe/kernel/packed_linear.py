"""Weights packed into panels for our kernel, and linear layers that run on them.

product.h says how panels are laid out and why sums are in one order.
"""

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

Precision = Literal["float32", "bfloat16", "int8"]  # of the elements of a packed weight
_ROWS = 1024  # rows of a weight that are rounded at once
_ALIGNMENT = 64  # bytes of a line of the processor's cache


class PackedMatrix:
    """A weight [columns, k] in panels.

    Call it with x [..., k] for x times the transposed weight, plus bias, in float32. Weights of
    int8 are symmetric, with a scale for each output column. Raises NoCompiler.
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
        """Bytes of the packed weight with its scales, without the padding of its last panel."""
        scales = 0 if self._scales is None else self._scales.nbytes
        return self.columns * self.k * self._panels.itemsize + scales

    def unpacked(self) -> Tensor:
        """[columns, k] a copy of the weight that it computes with, in plain order."""
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
    """A linear layer over a weight in panels."""

    packed: PackedMatrix

    def __init__(self, layer: nn.Linear, *, precision: Precision) -> None:
        super().__init__(layer, PackedMatrix(layer.weight, layer.bias, precision=precision))


def weight_bytes(layer: nn.Linear | ReorderedLinear) -> int:
    """Bytes of a layer's weight as it lies in memory, scales included."""
    return layer.packed.nbytes if isinstance(layer, ReorderedLinear) else layer.weight.nbytes


def pack_linears(
    model: nn.Module,
    *,
    precision: Precision,
    kernels: Mapping[tuple[int, ...], str] | None = None,
    excluded: Collection[nn.Module | None] = (),
) -> None:
    """Replace every plain float32 linear layer on a CPU; each weight is released at once.

    kernels: which kernel each shape of weight gets: own, onednn, or torch, which leaves the layer
    as it is. None: all get our own. excluded: layers that stay as they are.
    """
    files = MappedFiles.of_this_process()
    # The layers are in no list, or all weights would be in memory twice at the end.
    for parent in [module for module in model.modules() if not is_plain(module)]:
        for name in [name for name, _ in parent.named_children()]:
            layer: nn.Module = getattr(parent, name)
            if not is_plain(layer) or any(layer is each for each in excluded):
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
    """Whether this is torch's own linear layer without hooks, in float32 and on a CPU."""
    if type(layer) is not nn.Linear or "forward" in vars(layer) or layer._forward_hooks:
        return False
    return layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _rounded(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """(weight in this dtype, scales [columns] for int8 and None otherwise)."""
    if dtype != torch.int8:
        return weight.to(dtype).contiguous(), None
    scales = torch.linalg.vector_norm(weight.float(), torch.inf, dim=1).clamp_min(1e-30) / 127
    rounded = torch.empty(weight.shape, dtype=dtype)
    for start in range(0, len(weight), _ROWS):  # the whole weight in float32 would double the peak
        some = slice(start, start + _ROWS)
        rounded[some] = (weight[some] / scales[some, None]).round_()
    return rounded, scales


def _aligned(numel: int, dtype: torch.dtype) -> Tensor:
    """An empty tensor [numel] that begins on the border of a cache line."""
    spare = _ALIGNMENT // dtype.itemsize
    room = torch.empty(numel + spare, dtype=dtype)
    start = -room.data_ptr() % _ALIGNMENT // dtype.itemsize
    return room[start : start + numel]
