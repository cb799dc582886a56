"""A pass over a model's own code as a function of tensors, which a launch can capture."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specframe.cache.base import Opened, PassForm
from specframe.runtime.base import Tensors
from specframe.target.base import Forward
from specframe.target.hf.blocks import BlockPlan, Blocks


@dataclass(frozen=True, kw_only=True)
class PassKey:
    """Everything that a pass depends on, except its tensors."""

    blocks: Blocks
    rows: int
    span: tuple[int, int]  # blocks [first, last)
    skip: frozenset[str]  # sub-layers that are left out
    taps: tuple[str, ...]
    embedded: bool  # it takes hidden states, not tokens
    windows: tuple[tuple[str, int | None], ...]  # attention window by type of layer
    own_mask: bool  # the model makes the mask of a causal pass by itself, which is faster
    dtype: torch.dtype  # of the additive masks
    wanted: int | None  # rows whose logits are needed; None: no logits
    table: Hashable  # which rotary tables it reads, where a runtime may make constants of them
    form: Hashable = None  # key of the cache's form, where there is one

    def over(self, form: PassForm) -> Any:
        """The pass as `fn(inputs, buffers)`, the cache being taken apart into tensors.

        inputs: what `compute` is given, then the inputs of the form.
        """

        def run(inputs: Tensors, buffers: Tensors) -> Tensors:
            count = 1 if self.wanted is None else 2
            return self.compute(inputs[:count], form.attached(inputs[count:], buffers))

        return run

    def compute(self, given: Sequence[Tensor], opened: Opened) -> Tensors:
        """given: tokens [R] or hidden states [R, H], then the rows wanted [W] if any.

        Returns logits [W, V] if wanted, hidden [R, H], then the taps in order.
        """
        entering, want = given[0], given[1] if len(given) > 1 else None
        masks = {kind: self._mask(opened, window) for kind, window in self.windows}
        inputs: dict[str, Any] = {
            "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
            "position_ids": opened.positions[None],
            self.blocks.cache_name: self.blocks.dress(opened),
            "use_cache": True,
            "inputs_embeds" if self.embedded else "input_ids": entering[None],
        }
        plan = BlockPlan(
            first=self.span[0],
            last=self.span[1],
            entering=entering if self.embedded else None,
            skip=self.skip,
            taps=frozenset(self.taps),
        )
        logits, hidden, found = self.blocks.run(inputs, plan, want)
        taps = [found[name] for name in self.taps]
        return (hidden, *taps) if logits is None else (logits, hidden, *taps)

    def _mask(self, opened: Opened, window: int | None) -> Tensor | None:
        """Additive mask [1, 1, R, S]; None: the model's own causal one."""
        if opened.is_causal and window is None and self.own_mask:
            return None
        visible = opened.visible(window)
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=visible.device)
        return mask.masked_fill_(~visible, -torch.inf)[None, None]

    def unpack(self, outputs: Tensors) -> Forward:
        """What `compute` returned, by name."""
        logits, rest = (None, outputs) if self.wanted is None else (outputs[0], outputs[1:])
        taps = dict(zip(self.taps, rest[1:], strict=True))
        return Forward(logits=logits, hidden=rest[0], taps=taps)
