"""The networks of EAGLE-1/2 and EAGLE-3: state and next token in, next state out.

Both have three verbs: `fuse` turns the target's true features into states, `forward` predicts the
state one token on (what drafted tokens are fed with), `logits` reads a predicted state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specframe.heads.layers import Layer, MidLayer, RMSNorm, Shape, View


@dataclass(frozen=True, kw_only=True)
class EagleOptions:
    """What a file of EAGLE-1/2 holds."""

    shape: Shape
    layers: int = 1
    bias: bool = False  # of fc
    embeddings: int = 0  # rows of its own embedding, 0 for none
    head: int = 0  # rows of its own output head, 0 for none
    vocab_size: int | None = None  # of the target; None if the configuration does not say


class EagleNet(nn.Module):
    """EAGLE-1/2: x = fc([e(token); feature]), layers without a norm at either end."""

    def __init__(self, options: EagleOptions) -> None:
        super().__init__()
        shape = options.shape
        self.options, self.hidden_size = options, shape.hidden
        self.embed_tokens = _table(options.embeddings, shape.hidden)
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=options.bias)
        self.layers = nn.ModuleList(
            Layer(shape, layer=index, input_norm=index > 0) for index in range(options.layers)
        )
        self.lm_head = _head(shape.hidden, options.head)

    def fuse(self, features: Tensor) -> Tensor:
        """[..., H] true features are states as they are."""
        return features

    def forward(self, states: Tensor, embedded: Tensor, view: View) -> Tensor:
        """[B, R, H] predicted features from states and the embeddings of the next tokens."""
        x = self.fc(torch.cat([embedded, states], dim=-1))
        for layer in self.layers:
            x = layer(x, view)
        return x

    def logits(self, states: Tensor) -> Tensor:
        """[..., V] by the file's own head; only where it has one."""
        assert self.lm_head is not None, "the head is the target's"
        return self.lm_head(states)


@dataclass(frozen=True, kw_only=True)
class Eagle3Options:
    """What a file of EAGLE-3 holds, with the switches of its descendants."""

    shape: Shape
    draft_vocab: int  # rows of the head
    features: int = 3  # states of the target that are fused
    feature_size: int  # width of each
    layers: int = 1
    bias: bool = False  # of fc
    embeddings: int = 0  # rows of its own embedding, 0 for none
    vocab_size: int | None = None  # of the target; None if the configuration does not say
    mapped: bool = True  # it has d2t: target id minus draft id of each row
    marked: bool = True  # it has t2d: whether each target token has a row
    taps: tuple[int, ...] | None = None  # blocks whose input is fused; None: the usual three
    norm_before_residual: bool = False  # the residual is taken from the normed state
    norm_before_fc: bool = False  # a norm over the concatenated features
    fc_norm: bool = False  # a norm for each feature
    norm_output: bool = False  # the normed state is what is fed back


class Eagle3Net(nn.Module):
    """EAGLE-3: g = fc(taps), one mid layer of doubled width, own normed head over few tokens."""

    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(self, options: Eagle3Options) -> None:
        super().__init__()
        shape, width = options.shape, options.features * options.feature_size
        self.options, self.hidden_size = options, shape.hidden
        self.embed_tokens = _table(options.embeddings, shape.hidden)
        self.input_norm = RMSNorm(width, shape.eps) if options.norm_before_fc else None
        norms = [RMSNorm(options.feature_size, shape.eps) for _ in range(options.features)]
        self.fc_norm = nn.ModuleList(norms) if options.fc_norm else None
        self.fc = nn.Linear(width, shape.hidden, bias=options.bias)
        self.midlayer = MidLayer(shape, norm_before_residual=options.norm_before_residual)
        later = range(1, options.layers)
        self.layers = nn.ModuleDict({str(index): Layer(shape, layer=index) for index in later})
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, options.draft_vocab, bias=False)
        rows, vocab = options.draft_vocab, options.vocab_size or options.draft_vocab
        offsets = torch.zeros(rows, dtype=torch.long) if options.mapped else None
        self.register_buffer("d2t", offsets)
        marks = torch.arange(vocab) < rows if options.marked else None
        self.register_buffer("t2d", marks)

    def fuse(self, features: Tensor) -> Tensor:
        """[..., features * feature_size] taps, low to high -> [..., H] states."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.split(self.options.feature_size, dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            features = torch.cat(normed, dim=-1)
        return self.fc(features)

    def forward(self, states: Tensor, embedded: Tensor, view: View) -> Tensor:
        """[B, R, H] states to feed back: the layers' output, normed only with `norm_output`."""
        x = self.midlayer(states, embedded, view)
        for layer in self.layers.values():
            x = layer(x, view)
        return self.norm(x) if self.options.norm_output else x

    def logits(self, states: Tensor) -> Tensor:
        """[..., draft_vocab] logits of states that `forward` gave."""
        return self.lm_head(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """[..., H] states as the output head reads them."""
        return states if self.options.norm_output else self.norm(states)

    def target_ids(self) -> Tensor:
        """[draft_vocab] target id of each row of the head: its own index plus d2t's offset."""
        rows = torch.arange(self.options.draft_vocab, device=self.lm_head.weight.device)
        return rows if self.d2t is None else rows + self.d2t


def _table(rows: int, hidden: int) -> nn.Embedding | None:
    return nn.Embedding(rows, hidden) if rows else None


def _head(hidden: int, rows: int) -> nn.Linear | None:
    return nn.Linear(hidden, rows, bias=False) if rows else None
