"""What a run will ask of its models, done once before the first answer.

For runtimes that make passes ready: what an answer needs is then there, and no answer's time holds
the making of it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch

from specframe.drafting.builder import TreeBuilder
from specframe.errors import ConfigError
from specframe.law.streams import Streams
from specframe.session.engine import Engine
from specframe.session.stopping import StopConfig

_TOKENS, _STEPS = 32, 2  # of a made-up answer: the most, steps of it


def prepared(engine: Engine) -> Engine:
    """The same engine, once its runtime is ready for it."""
    parts = engine.parts
    if parts.runtime.prepares:
        never = StopConfig(eos=[], strings=None, criteria=None)
        alone = Engine(parts, replace(engine.settings, stop=never))
        tree, aux = parts.tree, parts.drafter.needs.aux_rows
        parts.runtime.prepare(
            lambda rows: rehearse(alone, rows),
            most=tree.most_rows if parts.drafter.drafts else 1,
            limit=max(1, tree.max_nodes - aux),
        )
    return engine


@torch.inference_mode()
def rehearse(engine: Engine, rows: int) -> None:
    """A pass of a draft of `rows` rows, then steps as they come, if nothing is learnt of them."""
    parts = engine.parts
    with suppress(ConfigError):  # told when an answer has the same trouble
        prompt = _prompt(engine, rows)
        _verify(engine, prompt, rows)
        if parts.drafter.warm is None and not parts.drafter.synthetic:
            loop = engine.decoding(max_new_tokens=_TOKENS)
            loop.begin(prompt)
            for _ in range(_STEPS):
                if loop.finish_reason is None:
                    loop.step()
    parts.cache.holder = None  # an answer that was under way has lost its keys


def _prompt(engine: Engine, rows: int) -> list[int]:
    """Any tokens, more than a draft has, so that their own pass is not taken for one; fewer where
    there is no room for them before a draft of `rows`. Leaves the cache empty."""
    target, cache = engine.parts.target, engine.parts.cache
    count = engine.parts.tree.max_nodes + 1
    cache.reset(rows=count + rows, device=target.device)
    for room in (target.gives.max_positions, cache.capacity):
        if room is not None:
            count = min(count, room - rows)
    return [token % target.vocab_size for token in range(max(1, count))]


def _verify(engine: Engine, prompt: list[int], rows: int) -> None:
    """The verify pass of a bare root, padded."""
    target, cache = engine.parts.target, engine.parts.cache
    taps = engine.parts.drafter.needs.taps
    target.prefill(prompt, cache, taps=taps)
    builder = TreeBuilder(
        context=torch.tensor([*prompt, 0], device=target.device),
        sampling=engine.sampling(len(prompt)),
        rng=Streams(seed=0, sequence=0),
        step=0,
        how="place",
    )
    draft = builder.build(pad_to=rows)
    draft = replace(draft, slots=cache.reserve(draft.num_rows), in_order=True)
    target.score(draft, cache, taps=taps)
    cache.discard()
