"""Drafting with a network over true features, as EAGLE's drafters and mtp do it.

Pair t is (state of token t, token t + 1), at position t and slot t of the draft's cache; what the
network gives there predicts the state of token t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specframe.buffers.contiguous import Contiguous
from specframe.buffers.tensor_passes import Scratch
from specframe.cache.base import CacheManager
from specframe.capture.capturable import CapturableDraft, Expand
from specframe.drafter.base import Drafter, Traits
from specframe.drafting.cache_view import CacheView
from specframe.drafting.feeding import Feeding, Level, Run
from specframe.heads.layers import View
from specframe.records import Context, StepRecord
from specframe.runtime.base import Runtime
from specframe.target.base import PREFILL_ROWS, causal_rows
from specframe.types import Frontier, Needs, Proposal, Rows, TargetOutput, Tensors


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

    traits = Traits(needs=Needs(own_cache=True), laws="logits")

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
        self._cache, self._launch = cache, runtime.launch
        self._device, self._dtype = device, dtype
        self._source = type(self).__name__.lower()
        self._feeding: Feeding | None = None
        self._layers: tuple[int, ...] = ()  # of the network, by their number in the cache
        self._forget()

    def begin(self, context: Context, out: TargetOutput) -> None:
        self._context = context
        self._cache.open(0, columns=context.max_columns, device=self._device)
        self._forget()
        self._pending.parts.append(self._taken(out, None))

    def expand(self, frontier: Frontier) -> Sequence[Proposal]:
        if frontier.depth == 0:
            states = self._start(frontier)
        elif self._feeding is None:
            return []
        else:
            states = self._feeding.feed(frontier, self._run_at(frontier.depth))
        return [] if states is None else self._offer(states, frontier.depth)

    def capturable(self, max_expanded: int) -> CapturableDraft | None:
        state = self._caught_up()
        fixed = self._cache.fixed(max_expanded) if isinstance(self._cache, Contiguous) else None
        if state is None or fixed is None:
            return None

        def source(inputs: Tensors, buffers: Tensors) -> Expand:
            state, base = inputs
            return self._expanding(state, fixed.over(base, buffers))

        key = (self, fixed.layers, fixed.width)
        return CapturableDraft(
            inputs=(state, fixed.base), buffers=fixed.buffers, key=key, source=source
        )

    def _expanding(self, state: Tensor, scratch: Scratch) -> Expand:
        """`expand` from the root's state [1, H] on, over tensors alone."""
        feeding: Feeding | None = None

        def expand(frontier: Frontier) -> Sequence[Proposal]:
            nonlocal feeding
            if frontier.depth == 0:
                root = Level.of_root(frontier, state)
                feeding = Feeding(scratch, length=scratch.base, root=root)
                return self._offer(state, 0)
            assert feeding is not None, "the root comes first"

            depth = frontier.depth

            def run(rows: Rows, states: Tensor) -> Tensor:
                assert rows.tokens is not None
                view = CacheView(scratch.opened(rows))
                return self._through(states, rows.tokens, view, self._stage(depth))

            states = feeding.feed(frontier, run)
            return [] if states is None else self._offer(states, depth)

        return expand

    def observe(self, record: StepRecord) -> None:
        rows = torch.tensor([0, *record.path], device=record.draft.tokens.device)
        self._pending.parts.append(self._taken(record.out, rows))
        self._cache.discard(0)
        self._feeding = None

    def truncate(self, length: int) -> None:
        pairs = max(length - 1, 0)
        length = min(self._cache.lengths[0], pairs)
        self._cache.truncate(0, length)
        self._outputs.truncate(length)
        self._pending.truncate(pairs - length)
        self._feeding = None

    def _offer(self, states: Tensor, depth: int) -> Sequence[Proposal]:
        """The children of nodes at a depth, whose states are [F, ...]."""
        logits = self._logits(states, depth)
        return [Proposal(logits=logits, ids=self._ids, source=self._source)]

    def _logits(self, states: Tensor, depth: int) -> Tensor:
        """[F, Vd] of the children of nodes at a depth, whose states are [F, ...]."""
        return self._head(states)

    def _stage(self, depth: int) -> int:
        """Index of the network's module for a depth (0: true features), where it has one per depth;
        0 means the same module throughout."""
        return 0

    def _entering(self, features: Tensor) -> Tensor:
        """States that true features [R, W] of the next pairs give."""
        return self.net.fuse(features)

    def _forget(self) -> None:
        self._pending = _Chunks()  # features of committed tokens that the network has not seen
        self._outputs = _Chunks()  # states that it gave for the others, for going back
        self._feeding = None

    def _taken(self, out: TargetOutput, rows: Tensor | None) -> Tensor:
        """[R, W] a copy of the taps side by side, on the network's device and in its dtype."""
        found = [out.taps[name] for name in self.traits.needs.taps]
        if rows is not None:
            found = [one.index_select(0, rows.to(one.device)) for one in found]
        # `cat` copies, which the records ask of whoever keeps one.
        joined = torch.cat([one.to(self._device) for one in found], dim=-1)
        return joined.to(self._dtype)

    def _start(self, frontier: Frontier) -> Tensor | None:
        """[1, H] the predicted state of the root, with which a draft begins."""
        states = self._caught_up()
        if states is not None:
            root = Level.of_root(frontier, states)
            self._feeding = Feeding(self._cache, length=self._cache.lengths[0], root=root)
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
        start = cache.lengths[0] + 1
        rows = causal_rows(self._context.ids[start : start + count], cache)
        states = self._run(self._entering(features), rows, depth=0)
        cache.commit(rows.slots, [count], moved=[False])
        self._outputs.parts.append(states)

    def _run_at(self, depth: int) -> Run:
        """How the nodes of a depth are run; each is fed with its parent's own prediction."""
        return lambda rows, states: self._run(states, rows, depth=depth)

    def _run(self, states: Tensor, rows: Rows, *, depth: int) -> Tensor:
        """States of one pass of the network over states [R, ...] and tokens [R]."""
        assert rows.tokens is not None
        stage, opened = self._stage(depth), self._cache.opened(rows)
        form = opened.form(self._layers, [None])
        if form is None:  # the first pass of a text runs every layer and makes their buffers
            view = CacheView(opened)
            states = self._through(states, rows.tokens, view, stage)
            self._layers = tuple(view.layers)
            return states

        def run(inputs: Tensors, buffers: Tensors) -> Tensors:
            states, tokens, *rest = inputs
            view = CacheView(form.attached(tuple(rest), buffers))
            return (self._through(states, tokens, view, stage),)

        key = (self, stage, len(rows.tokens), form.key)
        inputs = (states, rows.tokens, *form.inputs)
        return self._launch.wrap(run, key)(inputs, form.buffers)[0]

    def _through(self, states: Tensor, tokens: Tensor, view: View, stage: int) -> Tensor:
        """[R, ...] states that the network gives over states [R, ...] and tokens [R]."""
        which = (stage,) if stage else ()
        return self.net(states[None], self._embed(tokens)[None], view, *which)[0]
