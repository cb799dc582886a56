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
    """What a file of modules holds. A state is that after or before the norm of the output head."""

    shape: Shape
    first: int  # number of the first module, counted on from the target's blocks
    modules: int = 1  # K
    embeddings: int = 0  # rows of each module's own embedding, 0 for none
    head: int = 0  # rows of each module's own output matrix, 0 for none
    vocab_size: int | None = None  # of the target; None if the configuration does not say
    feature: State = "post_norm"  # the target's state that module 0 reads
    recycle: State = "post_norm"  # the state of its own that a module hands on


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

        depth 0: the rows are true tokens one after the other. Their `states` are the target's at
        the token before, side by side with those of modules 0 .. K - 2 there; of the latter only
        the first row's are read, as this pass itself gives the others. depth d > 0: the rows are
        drafted tokens, and `states` are all states of their parents. Modules 0 .. d - 1 would need
        states that only the target can give, so they are left out; beyond depth K the last module
        goes on with its own states.
        """
        given = list(states.split(self.hidden_size, dim=-1))
        count = self.options.modules
        if depth >= count:
            given[-1] = self._run(count - 1, given[-1], embedded, view)
            return torch.cat(given, dim=-1)
        outputs = given[:depth]
        for index in range(depth, count):
            entering = given[index - 1] if depth else given[index]
            if index and not depth:
                entering = torch.cat([entering[:, :1], outputs[-1][:, :-1]], dim=1)
            outputs.append(self._run(index, entering, embedded, view))
        return torch.cat(outputs, dim=-1)

    def normed(self, states: Tensor, index: int = 0) -> Tensor:
        """[..., H] states as the head of module `index` reads them, of states [..., K * H]."""
        own = states.split(self.hidden_size, dim=-1)[index]
        is_normed = self.options.recycle == "post_norm"
        return own if is_normed else self.module(index).shared_head.norm(own)

    def _run(self, index: int, states: Tensor, embedded: Tensor, view: View) -> Tensor:
        module = self.module(index)
        if index:
            view = view.later(index)  # its pairs begin that many tokens later
        made = module.predict(states, embedded, view)
        return module.shared_head.norm(made) if self.options.recycle == "post_norm" else made
