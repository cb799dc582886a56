"""A rule's decision as a function of tensors, which a runtime can record.

Whatever differs from step to step comes in as a tensor: tree and draws, logits, the position, the
sequence whose noise it is. The rest (sizes, kinds of draws, settings) is the key.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specframe.accept.base import AcceptRule
from specframe.capture.forms import apart, joined
from specframe.law.laws import Laws
from specframe.law.streams import Streams
from specframe.runtime.base import Runtime, Tensors
from specframe.types import Draft, Verdict


def judge(rule: AcceptRule, draft: Draft, laws: Laws, rng: Streams, runtime: Runtime) -> Verdict:
    """`rule.decide`, recorded where the runtime records and the rule leaves it nothing to miss."""
    hidden = laws.sampling.path_dependent or not is_pure(rule) or rule.extra_syncs(False)
    if hidden or runtime.recording is None or type(rng) is not Streams:
        return rule.decide(draft, laws, rng)
    tensors: list[Tensor] = []
    form = apart(_essence(draft), tensors)

    def decide(fed: Tensors, held: Tensors) -> Tensors:
        logits, position, sequence, *rest = fed
        rebuilt: Draft = joined(form, rest)
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
    counters = counted(logits.device, laws.position, rng.sequence)
    key = (rule, form, logits.shape, logits.dtype, laws.sampling.warping, rng.seed)
    path, tokens, count = runtime.wrap(decide, key)((logits, *counters, *tensors), ())
    laws.ask = lambda: rule.decide(draft, laws, rng)
    return Verdict(path=path, tokens=tokens, count=count)


def is_pure(component: object) -> bool:
    """Whether its very class says so; one that inherits it may do more."""
    return bool(vars(type(component)).get("pure", False))


def counted(device: torch.device, *values: Any) -> list[Tensor]:
    """[] int64 each on the device. A fill takes its number along; a tensor made on the host would
    have to be waited for."""
    return [torch.full((), one, dtype=torch.long, device=device) for one in values]


def _essence(draft: Draft) -> Draft:
    """What a pure rule may read of a draft."""
    return replace(draft, slots=None, aux=None, resume=None, calls=())
