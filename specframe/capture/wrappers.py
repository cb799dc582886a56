"""Decorators of components: a policy and a rule whose work runs as captured functions.

Whatever differs from step to step comes in as a tensor: the root, the length, tree and draws,
logits, the sequence whose noise it is. The rest (sizes, kinds of draws, settings) is the key. The
components themselves, the loop and their contracts know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule, Explanation
from specframe.capture.capturable import Capturable, CapturableDraft
from specframe.capture.purity import is_pure
from specframe.capture.tensor_records import apart, joined
from specframe.components import Components
from specframe.drafting.builder import TreeBuilder
from specframe.law.streams import Streams
from specframe.law.target_laws import Laws
from specframe.records import Context, StepRecord
from specframe.runtime.base import Launch, Tensors
from specframe.tree.base import Source, TreePolicy
from specframe.types import Budget, Draft, Frontier, Proposal, Verdict


@runtime_checkable
class Captures(Protocol):
    """A launch that captures what it wraps."""

    captures: bool
    forms: dict[Hashable, Any]  # what a draft is beside its tensors, by the key of its function

    def forget(self) -> None:
        """Drop all graphs: they keep the components of an earlier engine alive."""


def captured(components: Components) -> Components:
    """The same components, their policy and rule captured where that can be done."""
    launch = components.runtime.launch
    if not isinstance(launch, Captures) or not launch.captures:
        return components
    tree, rule = components.tree, components.accept
    return replace(
        components,
        tree=CapturedTree(tree, launch, launch.forms) if is_pure(tree) else tree,
        accept=CapturedRule(rule, launch) if is_pure(rule) else rule,
    )


class CapturedTree(TreePolicy):
    """Grows the draft of another policy, network passes included, as one captured function."""

    def __init__(self, policy: TreePolicy, launch: Launch, forms: dict[Hashable, Any]) -> None:
        super().__init__(depth=policy.depth, max_nodes=policy.max_nodes, proposal=policy.proposal)
        self.policy, self._launch = policy, launch
        self.decides_before_draw, self.needs_native = (
            policy.decides_before_draw,
            policy.needs_native,
        )
        self.chain_only, self.host_reads = policy.chain_only, policy.host_reads
        self._forms = forms  # kept by the launch: one policy may be wrapped once an engine

    @property
    def max_expanded(self) -> int:
        return self.policy.max_expanded

    def begin(self, context: Context) -> None:
        self.policy.begin(context)

    def grow(self, builder: TreeBuilder, source: Source, budget: Budget) -> None:
        drafting = self._drafting(builder, source, budget)
        if drafting is None:
            self.policy.grow(builder, source, budget)
        else:
            builder.take(self._grown(builder, drafting, budget))

    def observe(self, record: StepRecord) -> None:
        self.policy.observe(record)

    def _drafting(
        self, builder: TreeBuilder, source: Source, budget: Budget
    ) -> CapturableDraft | None:
        """The drafter's part, if nobody involved reads or keeps more than tensors."""
        on_host = builder.sampling.path_dependent or type(builder.rng) is not Streams
        bare = budget.rows < 2 or budget.depth < 1
        if on_host or bare or not isinstance(source, Capturable):
            return None
        return source.capturable(self.policy.max_expanded)

    def _grown(self, builder: TreeBuilder, drafting: CapturableDraft, budget: Budget) -> Draft:
        policy, sampling, how, seed = self.policy, builder.sampling, builder.how, builder.rng.seed
        # The end of a text is far away at most steps; they must not differ by how far.
        bounds = replace(
            budget, rows=min(budget.rows, policy.max_nodes), depth=min(budget.depth, policy.depth)
        )
        key = (policy, drafting.key, bounds, how, sampling.warping, seed)

        def run(inputs: Tensors, buffers: Tensors) -> Tensors:
            root, length, sequence, *rest = inputs
            inner = TreeBuilder(
                context=root,
                sampling=sampling,
                rng=Streams(seed=seed, sequence=sequence),
                step=length,
                how=how,
            )
            policy.grow(inner, _Expanding(drafting.source(tuple(rest), buffers)), bounds)
            draft = inner.build(pad_to=self._launch.bucket(inner.num_rows, bounds.rows))
            tensors: list[Tensor] = []
            self._forms[key] = apart(draft, tensors)
            return tuple(tensors)

        context = builder.context
        counters = _counters(context.device, context.shape[0], builder.rng.sequence)
        inputs = (context[-1:], *counters, *drafting.inputs)
        tensors = self._launch.wrap(run, key)(inputs, drafting.buffers)
        draft: Draft = joined(self._forms[key], tensors)
        return draft


@dataclass(frozen=True)
class _Expanding:
    """A source of nothing but proposals."""

    expand: Callable[[Frontier], Sequence[Proposal]]

    def native(self, budget: Budget) -> Sequence[Sequence[int]]:
        return []


class CapturedRule(AcceptRule):
    """Decides as another rule, as one captured function."""

    def __init__(self, rule: AcceptRule, launch: Launch) -> None:
        self.rule, self._launch = rule, launch
        self.lossless, self.same_text = rule.lossless, rule.same_text
        self.any_draft, self.reads = rule.any_draft, rule.reads
        self.preferred, self.chains_only = rule.preferred, rule.chains_only

    def decide(self, draft: Draft, laws: Laws, rng: Streams) -> Verdict:
        if laws.sampling.path_dependent or type(rng) is not Streams:
            return self.rule.decide(draft, laws, rng)
        rule, sampling, seed = self.rule, laws.sampling, rng.seed
        tensors: list[Tensor] = []
        form = apart(_essence(draft), tensors)

        def decide(inputs: Tensors, buffers: Tensors) -> Tensors:
            logits, position, sequence, *rest = inputs
            rebuilt: Draft = joined(form, rest)
            own = Laws(
                draft=rebuilt,
                logits=logits,
                context=rebuilt.tokens[:1],
                sampling=sampling,
                position=position,
            )
            verdict = rule.decide(rebuilt, own, Streams(seed=seed, sequence=sequence))
            return verdict.path, verdict.tokens, verdict.count

        logits = laws.logits
        counters = _counters(logits.device, laws.position, rng.sequence)
        key = (rule, form, logits.shape, logits.dtype, sampling.warping, seed)
        path, tokens, count = self._launch.wrap(decide, key)((logits, *counters, *tensors), ())
        return Verdict(path=path, tokens=tokens, count=count)

    def explain(
        self, draft: Draft, laws: Laws, rng: Streams, verdict: Verdict
    ) -> Explanation | None:
        return self.rule.explain(draft, laws, rng, verdict)


def _counters(device: torch.device, *values: Any) -> list[Tensor]:
    """[] int64 each on the device. A fill takes its number along; a tensor made on the host would
    have to be waited for."""
    return [torch.full((), value, dtype=torch.long, device=device) for value in values]


def _essence(draft: Draft) -> Draft:
    """What a pure rule may read of a draft."""
    return replace(draft, slots=None, columns=None, aux=None, resume=None, calls=())
