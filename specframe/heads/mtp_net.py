"""The modules of multi-token prediction, in the layout of DeepSeek-V3.

Module k = 0 .. K - 1 reads token t + 1 + k together with the state that module k - 1 gave for pair
t (module 0: the target's own state at token t) and predicts token t + 2 + k. A token is fed to all
modules at once, each with what the module before it gave at the token before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from specframe.heads.layers import Layer, RMSNorm, Shape, View

State = Literal["post_norm", "pre_norm"]


@dataclass(frozen=True, kw_only=True)
class MTPOptions:
    """What a file holds. first: number of the first module among the target's blocks; modules: how
    many follow each other. embeddings, head: rows of each module's own tables, 0 for none.

    feature: which state of the target module 0 reads, recycle: which of its own a module hands on;
    after or before the norm that precedes the output head.
    """

    shape: Shape
    first: int
    modules: int = 1
    embeddings: int = 0
    head: int = 0
    vocab_size: int | None = None
    feature: State = "post_norm"
    recycle: State = "post_norm"


class SharedHead(nn.Module):
    """A module's own last norm, and the output matrix where the file has a copy of it."""

    def __init__(self, options: MTPOptions) -> None:
        super().__init__()
        hidden = options.shape.hidden
        self.norm = RMSNorm(hidden, options.shape.eps)
        self.head = nn.Linear(hidden, options.head, bias=False) if options.head else None


class MTPModule(Layer):
    """x = eh_proj([enorm(embedding); hnorm(state)]), then a decoder layer."""

    def __init__(self, options: MTPOptions, *, layer: int) -> None:
        shape = options.shape
        super().__init__(shape, layer=layer)
        table = options.embeddings
        self.embed_tokens = nn.Embedding(table, shape.hidden) if table else None
        self.enorm = RMSNorm(shape.hidden, shape.eps)
        self.hnorm = RMSNorm(shape.hidden, shape.eps)
        self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.shared_head = SharedHead(options)

    def predict(self, states: Tensor, embedded: Tensor, view: View) -> Tensor:
        """[B, R, H] un-normed states from those of the module before."""
        entering = torch.cat([self.enorm(embedded), self.hnorm(states)], dim=-1)
        return self(self.eh_proj(entering), view)


class MTPNet(nn.Module):
    """K modules, `layers.<first>` and on. A token's state is what all K gave, side by side."""

    def __init__(self, options: MTPOptions) -> None:
        super().__init__()
        self.options, self.hidden_size = options, options.shape.hidden
        self.layers = nn.ModuleDict(
            {
                str(options.first + index): MTPModule(options, layer=index)
                for index in range(options.modules)
            }
        )

    def module(self, index: int) -> MTPModule:
        """Module k."""
        return cast(MTPModule, self.layers[str(self.options.first + index)])

    def fuse(self, features: Tensor) -> Tensor:
        """[..., H] true features are states of the target as they are."""
        return features

    def forward(self, states: Tensor, embedded: Tensor, view: View, depth: int = 0) -> Tensor:
        """[B, R, K * H] states of all modules after one more token.

        depth 0: true tokens in a row. states: the target's at the token before, side by side with
        those of modules 0 .. K - 2 there, of which only the first row's are read: the others follow
        from this pass. depth d: drafted tokens. states: all of the parent's; what only the target
        could give is left out, and beyond the last module that one goes on by itself.
        """
        given = list(states.split(self.hidden_size, dim=-1))
        count = self.options.modules
        if depth >= count:
            given[-1] = self._run(count - 1, given[-1], embedded, view)
            return torch.cat(given, dim=-1)
        made = given[:depth]
        for index in range(depth, count):
            entering = given[index - 1] if depth else given[index]
            if index and not depth:
                entering = torch.cat([entering[:, :1], made[-1][:, :-1]], dim=1)
            made.append(self._run(index, entering, embedded, view))
        return torch.cat(made, dim=-1)

    def normed(self, states: Tensor, index: int = 0) -> Tensor:
        """[..., H] what the head of module `index` reads, of states [..., K * H]."""
        own = states.split(self.hidden_size, dim=-1)[index]
        is_normed = self.options.recycle == "post_norm"
        return own if is_normed else self.module(index).shared_head.norm(own)

    def _run(self, index: int, states: Tensor, embedded: Tensor, view: View) -> Tensor:
        module = self.module(index)
        if index:
            view = view.later(index)  # its pairs begin that many tokens later
        made = module.predict(states, embedded, view)
        return module.shared_head.norm(made) if self.options.recycle == "post_norm" else made
