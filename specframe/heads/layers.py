"""Llama-style layers of a draft network: grouped heads, rotary positions, RMSNorm, SwiGLU.

Module names are those of the published files. A layer knows no cache: it hands its keys to
`View.attend`, which writes them where the caller wants: into a cache, or a list while training.
Letters beside those of `types.py`: B batch, h heads, s head size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions: theta_i = base^(-2i / s), rescaled as Llama 3 or linear scaling do it."""

    base: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0  # of rescaling, for linear and llama3
    low: float = 1.0  # llama3: wavelengths above original / low are divided by factor
    high: float = 4.0  # llama3: wavelengths below original / high stay
    original: int = 8192  # llama3: the context that the base was trained for, in tokens

    def frequencies(self, head_dim: int) -> Tensor:
        """[s / 2] float32 radians per position."""
        plain = self.base ** -(torch.arange(0, head_dim, 2).float() / head_dim)
        if self.kind == "default":
            return plain
        if self.kind == "linear":
            return plain / self.factor
        turns = self.original * plain / (2 * math.pi)
        smooth = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - smooth) * plain / self.factor + smooth * plain


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a draft layer."""

    hidden: int  # H
    intermediate: int  # width inside the MLP
    heads: int  # of queries
    kv_heads: int  # of keys and values, each shared by heads / kv_heads queries
    head_dim: int  # s
    eps: float = 1e-6  # of the norms
    rope: Rope = field(default_factory=Rope)
    biases: frozenset[str] = frozenset()  # projections that have a bias: "q_proj", "up_proj", ...
    qk_norm: bool = False  # queries and keys are normed by head


class KeyStore(Protocol):
    """Stores the new keys and values of a layer and returns all that its rows may see."""

    def __call__(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys, values [B, h, R, s] -> the same over S slots."""


class View(ABC):
    """Where the rows of a pass stand, and what their attention reads."""

    positions: Tensor  # [R] or [B, R] int64

    @abstractmethod
    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store keys and values [B, kv heads, R, s] of a layer; what the rows read [B, h, R, s]."""

    @abstractmethod
    def later(self, count: int) -> View:
        """The view of a module whose text begins `count` tokens later."""


@dataclass(frozen=True, kw_only=True)
class KeptView(View):
    """A view whose keys a function keeps, as training does it."""

    positions: Tensor
    visible: Tensor | None  # [R, S] or [B, 1, R, S] bool; None: plain causal rows, nothing before
    keep: KeyStore

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        grouped = queries.shape[1] != keys.shape[1]
        keys, values = self.keep(layer, keys, values)
        return functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=self.visible,
            is_causal=self.visible is None,
            enable_gqa=grouped,
        )

    def later(self, count: int) -> View:
        if self.visible is None:
            return self
        visible = without_first(self.visible, count)
        return replace(self, positions=(self.positions - count).clamp_min(0), visible=visible)


def without_first(visible: Tensor, count: int) -> Tensor:
    """[R, S] visible without the first `count` slots of each row, which lie in the order of a path.

    The first tokens have no state of the modules before to go with. A row of such a token keeps
    all, since nothing comes of it.
    """
    kept = visible & (visible.cumsum(-1) > count)
    return kept | (visible & ~kept.any(-1, keepdim=True))


class RMSNorm(nn.Module):
    """x * w / rms(x), computed in float32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention over `width`-wide inputs (2H where embedding and state meet)."""

    def __init__(self, shape: Shape, *, width: int, layer: int) -> None:
        super().__init__()
        self.shape, self.layer = shape, layer
        size, biases = shape.head_dim, shape.biases
        queries, groups = shape.heads * size, shape.kv_heads * size
        self.q_proj = nn.Linear(width, queries, bias="q_proj" in biases)
        self.k_proj = nn.Linear(width, groups, bias="k_proj" in biases)
        self.v_proj = nn.Linear(width, groups, bias="v_proj" in biases)
        self.o_proj = nn.Linear(queries, shape.hidden, bias="o_proj" in biases)
        self.q_norm = RMSNorm(size, shape.eps) if shape.qk_norm else None
        self.k_norm = RMSNorm(size, shape.eps) if shape.qk_norm else None
        # No buffer: a cast of the network to half precision must not touch the angles.
        self._frequencies: Tensor | None = None

    def forward(self, x: Tensor, view: View) -> Tensor:
        queries, keys = self._heads(self.q_proj(x)), self._heads(self.k_proj(x))
        values = self._heads(self.v_proj(x))
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        cos, sin = self._angles(view.positions, x.dtype)
        queries, keys = _rotated(queries, cos, sin), _rotated(keys, cos, sin)
        mixed = view.attend(self.layer, queries, keys, values)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """[B, R, h * s] -> [B, h, R, s]."""
        return x.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin [..., 1, R, s] of each position's angles."""
        frequencies = self._frequencies
        if frequencies is None or frequencies.device != positions.device:
            frequencies = self.shape.rope.frequencies(self.shape.head_dim).to(positions.device)
            self._frequencies = frequencies
        angles = positions[..., None].float() * frequencies
        angles = torch.cat([angles, angles], dim=-1).unsqueeze(-3)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, h, R, s] turned by its position, halves paired as in Llama."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        inner, biases = shape.intermediate, shape.biases
        self.gate_proj = nn.Linear(shape.hidden, inner, bias="gate_proj" in biases)
        self.up_proj = nn.Linear(shape.hidden, inner, bias="up_proj" in biases)
        self.down_proj = nn.Linear(inner, shape.hidden, bias="down_proj" in biases)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A decoder layer; the first one of EAGLE-1 has no norm before its attention."""

    def __init__(self, shape: Shape, *, layer: int, input_norm: bool = True) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps) if input_norm else None
        self.self_attn = Attention(shape, width=shape.hidden, layer=layer)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, view: View) -> Tensor:
        entering = x if self.input_layernorm is None else self.input_layernorm(x)
        x = x + self.self_attn(entering, view)
        return x + self.mlp(self.post_attention_layernorm(x))


class MidLayer(nn.Module):
    """EAGLE-3's layer: attention over [norm(embedding); norm(state)], residual from the state."""

    def __init__(self, shape: Shape, *, norm_before_residual: bool) -> None:
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, width=2 * shape.hidden, layer=0)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, states: Tensor, embedded: Tensor, view: View) -> Tensor:
        normed = self.hidden_norm(states)
        entering = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        x = (normed if self.norm_before_residual else states) + self.self_attn(entering, view)
        return x + self.mlp(self.post_attention_layernorm(x))
