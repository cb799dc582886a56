"""A rule's decision as a function of tensors, which a runtime can record.

Whatever differs from step to step comes in as a tensor: tree and draws, logits, the position, the
sequence whose noise it is. The rest (sizes, kinds of draws, settings) is the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.laws import Laws
from specframe.runtime.base import Runtime, Tensors
from specframe.streams import Streams
from specframe.types import Draft, Verdict


def judge(rule: AcceptRule, draft: Draft, laws: Laws, rng: Streams, runtime: Runtime) -> Verdict:
    """`rule.decide`, recorded where the runtime records and the rule leaves it nothing to miss."""
    hidden = laws.sampling.path_dependent or not rule.pure or rule.extra_syncs(False) > 0
    if hidden or not runtime.captures or type(rng) is not Streams:
        return rule.decide(draft, laws, rng)
    tensors: list[Tensor] = []
    form = _apart(_essence(draft), tensors)

    def decide(fed: Tensors, held: Tensors) -> Tensors:
        logits, position, sequence, *rest = fed
        rebuilt: Draft = _joined(form, rest)
        own = Laws(
            draft=rebuilt,
            logits=logits,
            context=rebuilt.tokens[:1],
            sampling=laws.sampling,
            position=position,
        )
        verdict = rule.decide(rebuilt, own, Streams(seed=rng.seed, sequence=sequence))
        return verdict.path, verdict.tokens, verdict.count

    logits = laws.logits
    # A fill takes its number along; a tensor from the host would have to be waited for.
    counters = [
        torch.full((), value, dtype=torch.long, device=logits.device)
        for value in (laws.position, rng.sequence)
    ]
    key = (rule, form, logits.shape, logits.dtype, laws.sampling.warping, rng.seed)
    path, tokens, count = runtime.wrap(decide, key)((logits, *counters, *tensors), ())
    laws.ask = lambda: rule.decide(draft, laws, rng)
    return Verdict(path=path, tokens=tokens, count=count)


def _essence(draft: Draft) -> Draft:
    """What a pure rule may read of a draft."""
    return replace(draft, slots=None, aux=None, resume=None, calls=())


@dataclass(frozen=True)
class _Place:
    """Where a tensor of this shape and kind was, and which of the list it is."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def _apart(value: Any, tensors: list[Tensor]) -> Any:
    """The same record with places for its tensors, which are appended to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype)
    if isinstance(value, tuple):
        return tuple(_apart(one, tensors) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        found = {one.name: _apart(getattr(value, one.name), tensors) for one in fields(value)}
        return replace(value, **found)
    return value


def _joined(form: Any, tensors: Sequence[Tensor]) -> Any:
    """The record whose places are filled again."""
    if isinstance(form, _Place):
        return tensors[form.index]
    if isinstance(form, tuple):
        return tuple(_joined(one, tensors) for one in form)
    if is_dataclass(form) and not isinstance(form, type):
        found = {one.name: _joined(getattr(form, one.name), tensors) for one in fields(form)}
        return replace(form, **found)
    return form
