"""What a run will ask of its models, done once before the first answer.

For runtimes that make passes ready: what an answer needs is then there, and no answer's time holds
the making of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch

from specframe.drafting.builder import TreeBuilder
from specframe.errors import ConfigError
from specframe.law.streams import Streams
from specframe.records import is_warm
from specframe.runtime.base import Launch
from specframe.session.engine import Engine
from specframe.session.stopping import StopConfig
from specframe.tree.base import TreePolicy

_TOKENS, _STEPS = 32, 2  # of a made-up answer: the most, steps of it


@runtime_checkable
class Prepares(Protocol):
    """A launch that makes passes ready before the first answer."""

    prepared_s: float  # seconds that this took so far

    def prepare(self, rehearse: Callable[[int], None], *, most: int, limit: int) -> None:
        """Make ready what will be run: `rehearse(rows)` runs the passes of a draft of so many rows.

        most: rows that a draft can have; limit: rows that it may be padded to.
        """


def prepared(engine: Engine) -> Engine:
    """The same engine, once its runtime is ready for it."""
    parts = engine.components
    launch, traits = parts.runtime.launch, parts.drafter.traits
    if isinstance(launch, Prepares):
        never = StopConfig(eos=[], strings=None, criteria=None)
        # Nobody reads a made-up answer: where its draft ends is not worth a notice.
        silent = replace(parts, notices={"rehearsal"})
        alone = Engine(silent, replace(engine.settings, stop=never))
        launch.prepare(
            lambda rows: rehearse(alone, rows),
            most=_most_rows(parts.tree) if traits.drafts else 1,
            limit=max(1, parts.tree.max_nodes - traits.needs.aux_rows),
        )
    return engine


def prepared_s(launch: Launch) -> float:
    """Seconds that a launch took so far to make passes ready."""
    return launch.prepared_s if isinstance(launch, Prepares) else 0.0


def _most_rows(tree: TreePolicy) -> int:
    """Most rows that a draft can have before padding."""
    return min(tree.max_nodes, tree.depth + 1) if tree.chain_only else tree.max_nodes


@torch.inference_mode()
def rehearse(engine: Engine, rows: int) -> None:
    """A pass of a draft of `rows` rows, then steps as they come, if nothing is learnt of them."""
    parts = engine.components
    with suppress(ConfigError):  # told when an answer has the same trouble
        prompt = _prompt(engine, rows)
        _verify(engine, prompt, rows)
        if is_warm(parts.drafter) is None and not parts.drafter.traits.synthetic:
            loop = engine.decoding(max_new_tokens=_TOKENS)
            loop.begin(prompt)
            for _ in range(_STEPS):
                if loop.finish_reason is None:
                    loop.step()


def _prompt(engine: Engine, rows: int) -> list[int]:
    """Any tokens, more than a draft has, so that their own pass is not taken for one; fewer where
    there is no room for them before a draft of `rows`. Leaves the cache empty."""
    target, cache = engine.components.target, engine.components.cache
    count = engine.components.tree.max_nodes + 1
    cache.open(0, columns=count + rows, device=target.device)
    for room in (target.gives.max_positions, cache.capacity):
        if room is not None:
            count = min(count, room - rows)
    return [token % target.vocab_size for token in range(max(1, count))]


def _verify(engine: Engine, prompt: list[int], rows: int) -> None:
    """The verify pass of a bare root, padded."""
    target, cache = engine.components.target, engine.components.cache
    taps = engine.components.drafter.traits.needs.taps
    target.prefill(prompt, cache, taps=taps)
    builder = TreeBuilder(
        context=torch.tensor([*prompt, 0], device=target.device),
        sampling=engine.sampling(len(prompt)),
        rng=Streams(seed=0, sequence=0),
        step=0,
        how="place",
    )
    draft = builder.build(pad_to=rows)
    fresh = cache.reserve([draft.num_rows])
    draft = replace(draft, slots=fresh.slots, columns=fresh.columns, in_order=True)
    target.score(draft, cache, taps=taps)
    cache.discard(0)
