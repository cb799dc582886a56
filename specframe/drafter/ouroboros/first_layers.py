"""The first layers of a model as a model that drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.errors import IncompatibleComponents
from specframe.target.base import Forward, Target
from specframe.types import Rows


class FirstLayers(Target):
    """The first `count` layers of a model under its own norm and head."""

    def __init__(self, model: Target, count: int) -> None:
        self.gives = model.gives
        self.vocab_size = model.vocab_size
        self.num_layers = count
        self.device = model.device
        self.dtype = model.dtype
        self.name = f"{model.name}, {count} of {model.num_layers} layers"
        self.eos_ids = model.eos_ids
        self.tokenizer = model.tokenizer
        self._model = model

    def forward(
        self,
        rows: Rows,
        cache: CacheManager,
        *,
        layers: tuple[int, int] | None = None,
        skip: frozenset[str] = frozenset(),
        taps: Sequence[str] = (),
        want: Tensor | None = None,
    ) -> Forward:
        layers = layers or (0, self.num_layers)
        return self._model.forward(rows, cache, layers=layers, skip=skip, taps=taps, want=want)

    def embed(self, tokens: Tensor) -> Tensor:
        return self._model.embed(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        return self._model.head(hidden)


def shortened(model: Target, target: Target, layers: int | Literal["auto"] | None) -> Target:
    """The first `layers` layers of a draft model; None: all of them.

    auto: all, or half of them where the model is the target itself. Raises IncompatibleComponents
    or ValueError.
    """
    partial, count = model.gives.partial_layers, model.num_layers
    if layers == "auto":
        same = (model.name, count) == (target.name, target.num_layers)
        layers = count // 2 if same and partial and count > 1 else None
    if layers is None:
        return model
    if not partial:
        raise IncompatibleComponents(
            f"drafter.layers={layers}: {model.name} cannot run a part of its layers; use "
            "drafter.layers=null"
        )
    if layers > count:
        raise ValueError(
            f"drafter.layers={layers}: {model.name} has {count} layers; give 1 .. {count}, or null "
            "for all"
        )
    return FirstLayers(model, layers)
