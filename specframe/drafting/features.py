"""Drafting with a network over true features, as both EAGLE drafters do it.

Pair t is (state of token t, token t + 1), at position t and slot t of the draft's cache; what the
network gives there predicts the state of token t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from specframe.cache.base import CacheManager, Keeper, Window
from specframe.drafter.base import Drafter, Expand, Growing
from specframe.drafting.levels import Level, Levels
from specframe.heads.layers import View
from specframe.records import Context, StepRecord
from specframe.runtime.base import Runtime, Tensors
from specframe.target.base import PREFILL_ROWS
from specframe.types import Frontier, Proposal, TargetOutput


class FeatureNet(Protocol):
    """What drafting asks of a network (see `heads.py`)."""

    def fuse(self, features: Tensor) -> Tensor:
        """[R, W] true features of the target -> [R, H] states."""

    def __call__(self, states: Tensor, embedded: Tensor, view: View, *stage: int) -> Tensor:
        """[1, R, H] states and embeddings -> [1, R, H] predicted states (see `_stage`)."""


@dataclass
class _Chunks:
    """Rows of consecutive pairs, in the pieces in which they came."""

    parts: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def truncate(self, length: int) -> None:
        """Keep the first `length` rows."""
        while len(self) > length:
            last = self.parts.pop()
            kept = length - len(self)
            if kept > 0:
                self.parts.append(last[:kept])


class FeatureDrafter(Drafter):
    """Runs a one-layer network over (state, next token) pairs, with its own keys.

    The committed part of its cache is built from true features only: what a step feeds while
    drafting is forgotten, and the step's committed rows are fed anew in the next `expand`.

    taps: names in the order in which they are laid side by side. embed [F] -> [F, H]; head [F, H]
    -> [F, Vd]; ids [Vd] target ids of the head's rows, None for the target's vocabulary.
    """

    gives_laws: ClassVar[bool] = True

    def __init__(
        self,
        *,
        net: FeatureNet,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        ids: Tensor | None,
        cache: CacheManager,
        runtime: Runtime,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.net = net
        self._embed, self._head, self._ids = embed, head, ids
        self._cache, self._runtime = cache, runtime
        self._device, self._dtype = device, dtype
        self._source = type(self).__name__.lower()
        self._levels: dict[int, Level] = {}
        self._forget()

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._context = context
        self._cache.launcher = self._runtime.recording
        self._cache.reset(rows=context.max_slots, device=self._device)
        self._forget()
        self._pending.parts.append(self._taken(out, None))

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        states = self._feed(frontier) if frontier.depth else self._catch_up(frontier)
        if states is None:
            return []
        return self._offer(states, frontier.depth)

    def growing(self, most: int) -> Growing | None:
        state, cache = self._caught_up(), self._cache
        if state is None:
            return None
        cache.reserve(most)
        layers, held = cache.layers, cache.held(cache.layers)
        assert held is not None, "the network has run"
        width = self._runtime.columns(cache.width, held[0].shape[2])
        cache.discard()

        def source(fed: Tensors, held: Tensors) -> Expand:
            window = Window(layers, held, width)

            def run(rows: Tensors, depth: int) -> Tensor:
                return self._forward(rows, window, self._stage(depth))

            state, length = fed
            levels = Levels(state=state, length=length, width=width, run=run, offer=self._offer)
            return levels.expand

        fed = (state, cache.length_tensor)
        return Growing(fed=fed, held=held, key=(self, width), source=source)

    def observe(self, record: StepRecord) -> None:
        rows = torch.tensor([0, *record.path], device=record.draft.tokens.device)
        self._pending.parts.append(self._taken(record.out, rows))
        self._cache.discard()
        self._levels = {}

    def truncate(self, length: int) -> None:
        pairs = max(length - 1, 0)
        self._cache.truncate(min(self._cache.length, pairs))
        self._outputs.truncate(self._cache.length)
        self._pending.truncate(pairs - self._cache.length)
        self._levels = {}

    def _offer(self, states: Tensor, depth: int) -> Sequence[Proposal]:
        """The children of nodes at a depth, whose states are [F, ...]."""
        logits = self._logits(states, depth)
        return [Proposal(logits=logits, ids=self._ids, source=self._source)]

    def _logits(self, states: Tensor, depth: int) -> Tensor:
        """[F, Vd] of the children of nodes at a depth, whose states are [F, ...]."""
        return self._head(states)

    def _stage(self, depth: int) -> int:
        """What `net` is told of a depth (0: true features) where its passes differ; 0 is untold."""
        return 0

    def _entering(self, features: Tensor) -> Tensor:
        """States that true features [R, W] of the next pairs give."""
        return self.net.fuse(features)

    def _forget(self) -> None:
        self._pending = _Chunks()  # features of committed tokens that the network has not seen
        self._outputs = _Chunks()  # states that it gave for the others, for going back
        self._levels = {}

    def _taken(self, out: TargetOutput, rows: Tensor | None) -> Tensor:
        """[R, W] a copy of the taps side by side, on the network's device and in its dtype."""
        found = [out.taps[name] for name in self.needs.taps]
        if rows is not None:
            found = [one.index_select(0, rows.to(one.device)) for one in found]
        # `cat` copies, which the records ask of whoever keeps one.
        joined = torch.cat([one.to(self._device) for one in found], dim=-1)
        return joined.to(self._dtype)

    def _catch_up(self, frontier: Frontier) -> Tensor | None:
        """[1, H] the predicted state of the root, with which a draft begins."""
        states = self._caught_up()
        if states is not None:
            none = frontier.nodes.new_empty((1, 0))
            self._levels = {0: Level(frontier.nodes, states, none)}
        return states

    def _caught_up(self) -> Tensor | None:
        """[1, H] the predicted state of the root, after all true features are fed; None where the
        context went back to its first token."""
        if self._pending.parts:
            features = torch.cat(self._pending.parts)
            self._pending = _Chunks()
            for start in range(0, len(features), PREFILL_ROWS):
                self._extend(features[start : start + PREFILL_ROWS])
        return self._outputs.parts[-1][-1:] if self._outputs.parts else None

    def _extend(self, features: Tensor) -> None:
        """Feed true features [R, W] of the next pairs and commit their keys."""
        cache, count = self._cache, len(features)
        slots = cache.reserve(count)
        start = cache.length + 1
        columns = torch.arange(cache.width, device=self._device)
        states = self._run(
            self._entering(features),
            self._context.ids[start : start + count],
            depth=0,
            slots=slots,
            visible=columns[None, :] <= slots[:, None],
        )
        cache.commit(slots, count, moved=False)
        self._outputs.parts.append(states)

    def _feed(self, frontier: Frontier) -> Tensor | None:
        """[F, H] predicted states of drafted nodes, each fed with its parent's own prediction."""
        cache, above = self._cache, self._levels.get(frontier.depth - 1)
        if above is None:
            return None
        places = above.parents(frontier)
        slots = cache.reserve(len(frontier))
        path = torch.cat([above.slots[places], slots[:, None]], dim=1)
        visible = torch.zeros((len(slots), cache.width), dtype=torch.bool, device=self._device)
        visible[:, : cache.length] = True
        visible.scatter_(1, path, True)
        states = self._run(
            above.states[places],
            frontier.tokens.clamp_min(0),  # a dead node has no token
            depth=frontier.depth,
            slots=slots,
            visible=visible,
        )
        level = Level(frontier.nodes, states, path)
        self._levels[frontier.depth] = level.joined(self._levels.get(frontier.depth))
        return states

    def _run(
        self, states: Tensor, tokens: Tensor, *, depth: int, slots: Tensor, visible: Tensor
    ) -> Tensor:
        """States of one pass of the network over states [R, ...] and tokens [R]."""
        first = self._cache.length + depth - 1
        positions = torch.full_like(slots, first) if depth else slots
        cache, stage = self._cache, self._stage(depth)
        layers = cache.layers
        held = cache.held(layers)
        if not held:  # the first pass runs every layer and makes their buffers
            return self._forward((states, tokens, positions, slots, visible), cache, stage)
        width = self._runtime.columns(cache.width, held[0].shape[2])
        visible = functional.pad(visible, (0, width - visible.shape[1]))
        fed = (states, tokens, positions, slots, visible)
        seen = width if self._runtime.one_width else None

        def run(fed: Tensors, held: Tensors) -> Tensors:
            return (self._forward(fed, Window(layers, held, seen), stage),)

        key = (self, stage, len(tokens), seen)
        return self._runtime.wrap(run, key)(fed, held)[0]

    def _forward(self, fed: Tensors, keeper: Keeper, stage: int) -> Tensor:
        """fed: states [R, ...], tokens [R], positions [R], slots [R], visible [R, S]."""
        states, tokens, positions, slots, visible = fed

        def keep(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            return keeper.update(layer, keys, values, slots)

        view = View(positions=positions, visible=visible, keep=keep)
        told = (stage,) if stage else ()
        return self.net(states[None], self._embed(tokens)[None], view, *told)[0]
