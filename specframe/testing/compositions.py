"""Components composed by hand, without the command line, and a run of them that is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specframe.accept.base import AcceptRule
from specframe.accept.match import Match
from specframe.cache.base import CacheManager
from specframe.cache.dynamic import DynamicCache
from specframe.capture.wrappers import captured
from specframe.components import Components
from specframe.drafter.base import Drafter
from specframe.drafter.none import NoDraft
from specframe.law.checked_streams import CheckedStreams
from specframe.law.sampling import Sampling, SamplingConfig, build_sampling
from specframe.law.streams import Streams
from specframe.loop import Decoding
from specframe.records import StepRecord
from specframe.runtime.base import Runtime
from specframe.runtime.eager import Eager
from specframe.session.engine import Engine
from specframe.session.lane import Terms
from specframe.session.settings import Settings
from specframe.session.stopping import StopConfig, build_stopping
from specframe.target.base import Target
from specframe.tree.base import TreePolicy
from specframe.tree.chain import ChainTree
from specframe.types import How

CPU = torch.device("cpu")
RUNTIME = Eager(buckets=None)
PROMPT = (5, 17, 42, 17, 42, 8)


def sampling_config(temperature: float = 0.0, **changes: Any) -> SamplingConfig:
    """Plain sampling at a temperature, with `changes`."""
    nothing = dict.fromkeys(SamplingConfig.__dataclass_fields__)
    return SamplingConfig(**{**nothing, "temperature": temperature, **changes})


def stop_config(**changes: Any) -> StopConfig:
    """Nothing but the model's own end tokens, with `changes`."""
    return StopConfig(**{"eos": "auto", "strings": None, "criteria": None, **changes})


def _short_chain() -> ChainTree:
    return ChainTree(depth=4, max_nodes=8, proposal="place")


@dataclass(kw_only=True)
class Composition:
    """One component an axis and the settings of a run; unset ones are the plainest."""

    target: Target
    drafter: Drafter = field(default_factory=NoDraft)
    tree: TreePolicy = field(default_factory=_short_chain)
    accept: AcceptRule = field(default_factory=Match)
    cache: CacheManager = field(default_factory=DynamicCache)
    runtime: Runtime = RUNTIME
    how: How = "place"
    sampling: SamplingConfig = field(default_factory=sampling_config)
    stop: StopConfig = field(default_factory=stop_config)
    seed: int = 0

    @property
    def components(self) -> Components:
        """The record of the components."""
        names = ("target", "drafter", "tree", "accept", "cache", "runtime", "how")
        return Components(**{name: getattr(self, name) for name in names})

    def engine(self, max_new_tokens: int = 16) -> Engine:
        """The engine of a user."""
        settings = Settings(
            seed=self.seed,
            max_new_tokens=max_new_tokens,
            sampling=self.sampling,
            stop=self.stop,
            raw=True,
        )
        return Engine(self.components, settings)

    def decoding(
        self, max_new_tokens: int, observers: Sequence[Any] = (), *, checked: bool = False
    ) -> Decoding:
        """The loop, to be stepped by hand.

        checked: refuse a coin that comes twice, which reads the host at each; where a launch
        captures, graphs have streams of their own.
        """
        eos = self.target.eos_ids if self.stop.eos == "auto" else self.stop.eos
        plain = self.components
        parts = captured(plain)
        streams = CheckedStreams if checked and parts is plain else Streams
        tokenizer = getattr(self.target.tokenizer, "tokenizer", None)

        def sampling(prompt_length: int) -> Sampling:
            return build_sampling(
                self.sampling,
                prompt_length=prompt_length,
                eos=eos,
                encode=None,
                vocabulary=self.target.vocab_size,
                device=self.target.device,
            )

        terms = Terms(
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stopping=build_stopping(self.stop, eos=eos, tokenizer=tokenizer),
            streams=lambda sequence: streams(seed=self.seed, sequence=sequence),
        )
        return Decoding(parts, terms, observers=observers)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run left: emitted tokens, one record a step, and the loop in its last state."""

    tokens: list[int]
    records: list[StepRecord]
    loop: Decoding

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that were accepted, over all steps."""
        return sum(record.num_accepted for record in self.records)


def decode(
    composition: Composition,
    prompt: Sequence[int] = PROMPT,
    count: int = 16,
    *,
    observers: Sequence[Any] = (),
    sequence: int = 0,
    checked: bool = True,
) -> Outcome:
    """Run to the end; after every step the cache holds all tokens but the root.

    checked: refuse a coin that comes twice, in a later step or in the same one.
    """
    loop = composition.decoding(count, observers, checked=checked)
    tokens: list[int] = []
    records: list[StepRecord] = []
    for emission in loop.run(prompt, sequence=sequence):
        tokens += emission.tokens
        if emission.record is None:
            continue
        records.append(emission.record)
        assert loop.context.tokens == [*prompt, *tokens]
        assert composition.cache.lengths[0] == len(loop.context) - 1
        assert composition.cache.extents[0] == composition.cache.lengths[0]
        assert len(records[-1].path) == len(records[-1].tokens) - 1
    return Outcome(tokens=tokens, records=records, loop=loop)
