"""Weights laid out for few rows, and the blocks of a model in one call: for a CPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Hashable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specframe.runtime.base import RUNTIMES, Pass, Runtime, Trunk


@RUNTIMES.register("packed")
class Packed(Runtime):
    """Float32 models on a CPU run on packed weights, which replace the model's own.

    A pass reads each weight once, whatever its rows; a model of Llama's family (Llama, Mistral,
    Qwen2, Qwen3) runs all its blocks in one call, any other its own code over packed linear
    layers. Rows are computed alike in every company, so drafting changes no bit of the text. Other
    dtypes and devices are left as they are. The kernel is compiled once per machine (seconds).

    weights: what the target's are kept as; bfloat16 is lossy. drafts: the same of a draft head,
    which changes no text. cuda: the runtime that runs in its place on a CUDA device, None for none
    (read before this one is made).
    """

    def __init__(
        self,
        *,
        weights: Literal["float32", "bfloat16"],
        drafts: Literal["float32", "bfloat16"],
        cuda: str | None,
        buckets: list[int] | None,
    ) -> None:
        super().__init__(buckets=buckets)
        self._half, self._half_drafts = weights == "bfloat16", drafts == "bfloat16"

    def wrap(self, fn: Pass, key: Hashable) -> Pass:
        return fn

    def adopt(self, model: nn.Module) -> Trunk | None:
        if not _is_ours(model) or not _compiled():
            return None
        from specframe.runtime.kernel.matrix import pack_linears
        from specframe.runtime.kernel.trunk import FusedTrunk, fits

        pack_linears(model, half=self._half)
        if not fits(model):
            return None
        base: Any = model.model
        return FusedTrunk(model.config, base.layers, base.rotary_emb)

    def draft(self, net: nn.Module, *, tables: Collection[nn.Module | None] = ()) -> None:
        if _is_ours(net) and _compiled():
            from specframe.runtime.kernel.matrix import pack_linears

            pack_linears(net, half=self._half_drafts, but=tables)

    def table(self, weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        plain = weight.device.type == "cpu" and weight.dtype == torch.float32
        if not plain or not _compiled():
            return super().table(weight, bias)
        from specframe.runtime.kernel import matrix

        return matrix.Packed(weight, bias, half=self._half_drafts)


def _is_ours(model: nn.Module) -> bool:
    """Float32 on a CPU, and nothing quantised."""
    first = next(model.parameters(), None)
    plain = first is not None and first.device.type == "cpu" and first.dtype == torch.float32
    return plain and not getattr(model, "is_quantized", False)


@functools.cache
def _compiled() -> bool:
    """Whether the kernel is here; told once where it is not."""
    from specframe.runtime.kernel.library import NoCompiler, library

    try:
        library()
    except NoCompiler as error:
        sys.stderr.write(f"specframe: runtime=packed: {error}; running as eager\n")
        return False
    return True
