"""Medusa's heads: residual blocks over the target's last state, one head per token ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class MedusaOptions:
    """What a file of Medusa heads holds."""

    hidden: int  # H of the target
    heads: int  # K
    layers: int = 1  # residual blocks of a head
    rows: int = 0  # of each head's own output matrix; 0 where all use the target's
    bias: bool = True  # of the blocks
    mapped: int = 0  # tokens that token_map names; 0 without one


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b); starts as the identity."""

    def __init__(self, hidden: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden, bias=bias)
        nn.init.zeros_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return states + functional.silu(self.linear(states))


class MedusaNet(nn.ModuleList):
    """K heads; head i reads the final-normed state at t and guesses the token at t + 2 + i.

    Names of parameters are those of the Medusa files: `{head}.{block}.linear.weight`, and
    `{head}.{layers}.weight` for an output matrix of its own.
    """

    token_map: Tensor | None

    def __init__(self, options: MedusaOptions) -> None:
        super().__init__(_head(options) for _ in range(options.heads))
        self.options, self.hidden_size = options, options.hidden
        named = torch.arange(options.mapped) if options.mapped else None
        self.register_buffer("token_map", named)

    def forward(self, states: Tensor) -> Tensor:
        """[K, ..., H] the states that each head's output matrix reads, from states [..., H]."""
        outputs = []
        for head in self:
            x = states
            for block in cast(nn.ModuleList, head)[: self.options.layers]:
                x = block(x)
            outputs.append(x)
        return torch.stack(outputs)

    def output(self, head: int) -> Tensor:
        """[rows, H] the output matrix of a head; only where it has one."""
        table = self.table(head)
        assert table is not None, "the heads use the target's output matrix"
        return table.weight

    def table(self, head: int) -> nn.Linear | None:
        """The output layer of a head, if it has its own."""
        layers = cast(nn.ModuleList, self[head])
        return cast(nn.Linear, layers[self.options.layers]) if self.options.rows else None

    def logits(self, states: Tensor) -> Tensor:
        """[K, ..., rows] logits of states that `forward` gave, by the heads' own matrices."""
        pairs = zip(states, range(len(self)), strict=True)
        return torch.stack([functional.linear(x, self.output(head)) for x, head in pairs])


def _head(options: MedusaOptions) -> nn.ModuleList:
    blocks = [ResidualBlock(options.hidden, bias=options.bias) for _ in range(options.layers)]
    own = [nn.Linear(options.hidden, options.rows, bias=False)] if options.rows else []
    return nn.ModuleList([*blocks, *own])
