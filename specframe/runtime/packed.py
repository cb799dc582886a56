"""Weights laid out for few rows, and the blocks of a model in one call: for a CPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specframe.runtime.base import RUNTIMES, Plain, Runtime, Trunk, Weights

Kept = Literal["float32", "bfloat16", "int8"]
Kernel = Literal["auto", "own", "onednn", "torch"]


@RUNTIMES.register("packed")
class Packed(Runtime):
    """Float32 models on a CPU run on packed weights, which replace the model's own.

    A pass reads each weight once, whatever its rows; a model of Llama's family (Llama, Mistral,
    Qwen2, Qwen3) runs all its blocks in one call, any other its own code over those of its layers
    that are `nn.Linear`, packed. Rows are computed alike in every company, so drafting changes no
    bit of the text. Other dtypes and devices are left as they are. The kernel is compiled once per
    machine (seconds).

    weights: what the target's are kept as; bfloat16 and int8 round them, which is lossy. drafts:
    the same of draft heads and draft models, which changes no text. kernel: what multiplies the
    target's float32 weights; auto measures ours, oneDNN's and torch's for each shape, once per
    machine, and takes ours unless another is a tenth faster. cuda: the runtime that runs in its
    place on a CUDA device, None for none (read before this one is made).
    """

    def __init__(
        self,
        *,
        weights: Kept,
        drafts: Kept,
        kernel: Kernel,
        cuda: str | None,
        buckets: list[int] | None,
    ) -> None:
        packed = PackedWeights(weights=weights, drafts=drafts, kernel=kernel)
        super().__init__(launch=Plain(buckets), weights=packed)


class PackedWeights(Weights):
    """Weights in panels for the compiled kernel; see `Packed` for the choices."""

    def __init__(self, *, weights: Kept, drafts: Kept, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel
        self._weights, self._drafts = weights, drafts

    @property
    def lossy(self) -> str | None:
        if self._weights == "float32":
            return None
        return (
            f"runtime.weights={self._weights} rounds the target's weights, so its text may differ "
            "from float32's"
        )

    def for_drafts(self) -> Weights:
        return PackedWeights(weights=self._drafts, drafts=self._drafts, kernel=self._kernel)

    def adopt(self, model: nn.Module) -> Trunk | None:
        if not _is_ours(model) or not _compiled():
            return None
        from specframe.kernel.packed_linear import pack_linears
        from specframe.kernel.trunk import FusedTrunk, fits_kernel

        chosen = self._chosen(model)
        self.kernels = {" x ".join(map(str, shape)): kernel for shape, kernel in chosen.items()}
        pack_linears(model, precision=self._weights, kernels=chosen)
        if not fits_kernel(model):
            return None
        base: Any = model.model
        return FusedTrunk(model.config, base.layers, base.rotary_emb)

    def _chosen(self, model: nn.Module) -> dict[tuple[int, ...], str]:
        """Which kernel each shape of weight gets: ours for all that is rounded."""
        from specframe.kernel.fastest_kernel import fastest_kernels
        from specframe.kernel.packed_linear import is_plain
        from specframe.kernel.trunk import is_supported_family

        shapes = [(*one.weight.shape,) for one in model.modules() if is_plain(one)]
        if self._weights != "float32":
            return dict.fromkeys(shapes, "own")
        if self._kernel != "auto":
            return dict.fromkeys(shapes, self._kernel)
        return dict(fastest_kernels(shapes, joined=is_supported_family(model.config)))

    def pack_head(self, net: nn.Module, *, tables: Collection[nn.Module | None] = ()) -> None:
        if _is_ours(net) and _compiled():
            from specframe.kernel.packed_linear import pack_linears

            pack_linears(net, precision=self._drafts, excluded=tables)

    def pack_table(self, weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        plain = weight.device.type == "cpu" and weight.dtype == torch.float32
        if not plain or not _compiled():
            return super().pack_table(weight, bias)
        from specframe.kernel.packed_linear import PackedMatrix

        return PackedMatrix(weight, bias, precision=self._drafts)


def _is_ours(model: nn.Module) -> bool:
    """Float32 on a CPU, and nothing quantised."""
    first = next(model.parameters(), None)
    plain = first is not None and first.device.type == "cpu" and first.dtype == torch.float32
    return plain and not getattr(model, "is_quantized", False)


@functools.cache
def _compiled() -> bool:
    """Whether the kernel is here; told once where it is not."""
    from specframe.kernel.library import NoCompiler, library

    try:
        library()
    except NoCompiler as error:
        sys.stderr.write(f"specframe: runtime=packed: {error}; running as eager\n")
        return False
    return True
