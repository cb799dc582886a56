"""The blocks of a transformers model under control: partial layers, skipped sub-layers, taps.

Each block's `forward` is wrapped once; a pass leaves its plan here and the wrappers follow it. A
call from outside (the model's own `generate`) has no plan and runs untouched.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from specframe.cache.base import Opened

if TYPE_CHECKING:
    from transformers import Cache

_ATTENTION = ("self_attn", "attn", "attention")
_MLP = ("mlp", "feed_forward", "block_sparse_moe", "ffn")


@dataclass(kw_only=True)
class BlockPlan:
    """One pass: blocks [first, last), the hidden states [R, H] entering the first if it is not 0,
    sub-layers to skip and taps to take; `taken` and `hidden` are what the pass leaves."""

    first: int
    last: int
    entering: Tensor | None
    skip: frozenset[str]
    taps: frozenset[str]
    taken: dict[str, Tensor] = field(default_factory=dict)
    hidden: Tensor | None = None
    normed: Tensor | None = None


class Blocks:
    """Runs a model's blocks [first, last) and collects what flows between them."""

    def __init__(self, model: Any, num_layers: int) -> None:
        self._model = model
        self._base, blocks = _find_blocks(model, num_layers)
        self._plan: BlockPlan | None = None
        parameters = inspect.signature(model.forward).parameters
        self.cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._dress: Any = None
        self._last = num_layers - 1
        self._tuples = False  # blocks that return (hidden, ...); a full pass comes first and tells
        self._wrap_base()
        for index, block in enumerate(blocks):
            block.forward = self._wrap_block(index, block.forward)
            self._wrap_part(f"attention:{index}", block, _ATTENTION)
            self._wrap_part(f"mlp:{index}", block, _MLP)

    def norm(self, hidden: Tensor) -> Tensor:
        """[R, H] of the residual stream [R, H] as it enters the output head."""
        normed: Tensor = self._base.norm(hidden)  # type: ignore[operator]
        return normed

    def dress(self, opened: Opened) -> Cache:
        """A pass over our cache in the clothes that the model expects."""
        if self._dress is None:
            self._dress = _dress_class()
        return self._dress(opened)

    def run(
        self, inputs: dict[str, Any], plan: BlockPlan, want: Tensor | None
    ) -> tuple[Tensor | None, Tensor, dict[str, Tensor]]:
        """(logits [W, V] or None, hidden [R, H] after block last - 1, taps)."""
        self._plan = plan
        try:
            logits = None
            if want is None:
                self._base(**inputs)
            else:
                logits = self._model(**inputs, logits_to_keep=want).logits[0]
        finally:
            self._plan = None
        assert plan.hidden is not None and plan.normed is not None
        plan.taken["final_prenorm"] = plan.hidden[0]
        plan.taken["final_postnorm"] = plan.normed[0]
        if "resid:0" in plan.taken:
            plan.taken["embed"] = plan.taken["resid:0"]
        return logits, plan.hidden[0], {name: plan.taken[name] for name in plan.taps}

    def _wrap_base(self) -> None:
        """Keep what the head reads, the normed hidden states, while a pass has its plan here."""
        forward = self._base.forward

        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if self._plan is not None:
                self._plan.normed = output[0]
            return output

        self._base.forward = run

    def _wrap_block(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        here, after = f"resid:{index}", f"resid:{index + 1}"
        wanted = {here, "embed"} if index == 0 else {here}

        def run(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            plan = self._plan
            if plan is None:
                return forward(hidden_states, *args, **kwargs)
            if index == plan.first and plan.entering is not None:
                hidden_states = plan.entering[None]
            if not plan.first <= index < plan.last:
                if index == self._last < plan.first and plan.entering is not None:
                    # Only norm and head are left to run.
                    plan.hidden = hidden_states = plan.entering[None]
                    plan.taken[after] = plan.entering
                return (hidden_states,) if self._tuples else hidden_states
            if not wanted.isdisjoint(plan.taps):
                plan.taken[here] = hidden_states[0]
            output = forward(hidden_states, *args, **kwargs)
            self._tuples = isinstance(output, tuple)
            plan.hidden = output[0] if self._tuples else output
            if index == self._last and after in plan.taps:
                plan.taken[after] = plan.hidden[0]
            return output

        return run

    def _wrap_part(self, name: str, block: nn.Module, candidates: Sequence[str]) -> None:
        """Let a sub-layer answer zero, which the residual stream passes by, when it is skipped."""
        part = next((getattr(block, key) for key in candidates if hasattr(block, key)), None)
        if part is None:
            return
        forward = part.forward
        returns_weights = name.startswith("attention")

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._plan is None or name not in self._plan.skip:
                return forward(*args, **kwargs)
            stream = args[0] if args else kwargs["hidden_states"]
            nothing = stream.new_zeros(stream.shape)
            return (nothing, None) if returns_weights else nothing

        part.forward = run


def _find_blocks(model: Any, num_layers: int) -> tuple[nn.Module, nn.ModuleList]:
    """The module whose output the head reads, and its blocks."""
    for base in (model.get_decoder(), model.base_model):
        for module in base.modules():
            if isinstance(module, nn.ModuleList) and len(module) == num_layers:
                return base, module
    raise ValueError(f"{type(model).__name__} has no list of {num_layers} blocks to run")


def _dress_class() -> type:
    from transformers import Cache

    class Dressed(Cache):
        """Hands each layer's keys and values to a pass over our cache."""

        def __init__(self, opened: Opened) -> None:
            self.layers = []
            self._opened = opened

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kw: Any
        ) -> tuple[Tensor, Tensor]:
            return self._opened.dense(layer_idx, key_states, value_states)

        # Positions and masks are ours; the model makes its own mask only in a causal pass over an
        # empty cache.
        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0

        def get_query_offset(self, *args: Any, **kwargs: Any) -> int:
            return 0

        def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
            return len(self._opened.positions), 0

        is_sliding = is_linear = is_dummy = property(lambda self: [False])
        is_compileable = False

    return Dressed
