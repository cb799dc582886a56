"""The layer of a fresh head: sizes that follow from its target, and random weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from specframe.heads.layers import Rope, Shape
from specframe.target.base import Target
from specframe.train.base import text_config

_STD = 0.02  # of fresh matrices; initializer_range of Llama


def shape_for(target: Target, *, intermediate: int | None) -> Shape:
    """The shape of the target's layers. intermediate: width of the MLP, None for the target's."""
    config = text_config(target)
    heads = config.num_attention_heads
    shape = Shape(
        hidden=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        eps=getattr(config, "rms_norm_eps", 1e-6),
        rope=Rope(base=_rope_base(config)),
    )
    return shape if intermediate is None else replace(shape, intermediate=intermediate)


def _rope_base(config: object) -> float:
    """The target's own base, since its states come from attention over distances on that scale."""
    rope = getattr(config, "rope_parameters", None) or {}
    return float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0)


@torch.no_grad()
def initialise(net: nn.Module) -> None:
    """Fill matrices with small normal values of torch's generator and biases with 0, not norms."""
    for name, weight in net.named_parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, _STD)
        elif name.endswith("bias"):
            weight.zero_()
