"""A draft grown by a tree policy, as one function of tensors where a runtime can record that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from specframe.capture.forms import apart, joined
from specframe.capture.judging import counted, is_pure
from specframe.components import Parts
from specframe.drafter.base import Growing
from specframe.drafting.builder import TreeBuilder
from specframe.law.sampling import Sampling
from specframe.law.streams import Streams
from specframe.lookup.foresight import Prospect
from specframe.runtime.base import Tensors
from specframe.tree.base import Source
from specframe.types import Budget, Draft, Frontier, How, Proposal


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where a draft grows: behind the tokens context [T], of which the last is its root."""

    context: Tensor
    sampling: Sampling
    rng: Streams

    def builder(self, how: How) -> TreeBuilder:
        """A draft of the bare root."""
        return TreeBuilder(
            context=self.context,
            sampling=self.sampling,
            rng=self.rng,
            step=self.context.shape[0],
            how=how,
        )


def grow(parts: Parts, ground: Ground, budget: Budget) -> Draft:
    """The draft of a step, padded to a bucket of the runtime."""
    growing = _recordable(parts, ground, budget)
    if growing is None:
        return _grown(parts, ground.builder(parts.how), parts.drafter, budget)
    return _recorded(parts, ground, budget, growing)


def _grown(parts: Parts, builder: TreeBuilder, source: Source, budget: Budget) -> Draft:
    parts.tree.grow(builder, source, budget)
    return builder.build(pad_to=parts.runtime.bucket(builder.num_rows, budget.rows))


def _recordable(parts: Parts, ground: Ground, budget: Budget) -> Growing | None:
    """What the drafter gives for it, if nobody involved reads or keeps more than tensors."""
    hidden = ground.sampling.path_dependent or not is_pure(parts.tree)
    if hidden or parts.runtime.recording is None or type(ground.rng) is not Streams:
        return None
    bare = budget.rows < 2 or budget.depth < 1
    return None if bare else parts.drafter.growing(parts.tree.max_expanded)


def _recorded(parts: Parts, ground: Ground, budget: Budget, growing: Growing) -> Draft:
    tree, rng, sampling = parts.tree, ground.rng, ground.sampling
    # A text's end is far away at most steps; they must not differ by how far.
    bounds = replace(
        budget, rows=min(budget.rows, tree.max_nodes), depth=min(budget.depth, tree.depth)
    )
    key = (tree, growing.key, bounds, parts.how, sampling.warping, rng.seed)

    def run(fed: Tensors, held: Tensors) -> Tensors:
        root, length, sequence, *rest = fed
        builder = TreeBuilder(
            context=root,
            sampling=sampling,
            rng=Streams(seed=rng.seed, sequence=sequence),
            step=length,
            how=parts.how,
        )
        draft = _grown(parts, builder, _Expanding(growing.source(tuple(rest), held)), bounds)
        tensors: list[Tensor] = []
        parts.runtime.forms[key] = apart(draft, tensors)
        return tuple(tensors)

    context = ground.context
    counters = counted(context.device, context.shape[0], rng.sequence)
    tensors = parts.runtime.wrap(run, key)((context[-1:], *counters, *growing.fed), growing.held)
    made: Draft = joined(parts.runtime.forms[key], tensors)
    return made


@dataclass(frozen=True)
class _Expanding:
    """A source of nothing but proposals."""

    expand: Callable[[Frontier], Sequence[Proposal]]

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        return []

    def prospects(self) -> Sequence[Prospect]:
        return []
