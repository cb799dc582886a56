"""A pass over a model's own code as a function of tensors, which a runtime can capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specframe.cache.base import Keeper, Window
from specframe.runtime.base import Tensors
from specframe.target.base import Forward
from specframe.target.hf.blocks import BlockPlan, Blocks


@dataclass(frozen=True, kw_only=True)
class PassKey:
    """All that a pass is, but for its tensors.

    rows: how many; width: slots seen, None for all that are held; span: blocks [first, last);
    embedded: it takes hidden states, not tokens; masks: the layer types that have their own;
    wanted: rows whose logits are needed, None for none; layers: those whose buffers are held.
    """

    blocks: Blocks
    rows: int
    width: int | None
    span: tuple[int, int]
    skip: frozenset[str]
    taps: tuple[str, ...]
    embedded: bool
    masks: tuple[str, ...]
    wanted: int | None
    layers: tuple[int, ...]

    def captured(self, fed: Tensors, held: Tensors) -> Tensors:
        """The pass over buffers held: keys of each layer, then values."""
        return self.compute(fed, Window(self.layers, held, self.width))

    def compute(self, fed: Sequence[Any], keeper: Keeper) -> Tensors:
        """fed: tokens [R] or hidden states [R, H], positions [R], slots [R], the rows wanted [W] if
        any, then additive masks [1, 1, R, S] (None: the kernel's own causal one).

        Returns logits [W, V] if wanted, hidden [R, H], then the taps in order.
        """
        entering, positions, slots, *rest = fed
        want = rest.pop(0) if self.wanted is not None else None
        masks: Any = dict(zip(self.masks, rest, strict=True))
        inputs: dict[str, Any] = {
            "attention_mask": masks if len(masks) > 1 else rest[0],
            "position_ids": positions[None],
            self.blocks.cache_name: self.blocks.dress(keeper, slots),
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

    def unpack(self, outputs: Tensors) -> Forward:
        """What `compute` returned, by name."""
        logits, rest = (None, outputs) if self.wanted is None else (outputs[0], outputs[1:])
        taps = dict(zip(self.taps, rest[1:], strict=True))
        return Forward(logits=logits, hidden=rest[0], taps=taps)
