"""The sides of a benchmark: each answers the same prompts, measured in the same way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from specframe.accept.base import RULES
from specframe.drafter.base import DRAFTERS
from specframe.measure.clock import Clock
from specframe.measure.meter import Meter
from specframe.measure.metrics import DepthCount, Metrics
from specframe.prompts.questions import encode_turns
from specframe.prompts.reader import PromptRecord
from specframe.records import Remembers, is_warm, memory_of
from specframe.session.engine import Engine
from specframe.session.warmup import prepared
from specframe.task.benchmark.passes import watched_forwards
from specframe.tree.base import TREES

BASELINE, METHOD = "baseline", "method"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of one answer, from its token ids on."""

    first_s: float  # until the first token is on the host
    prefill_s: float  # until the first verify step
    decode_s: float  # of the verify steps
    total_s: float
    step_ms: list[float]  # of each verify step, with what follows it
    # Within the target's forward, also where a drafter calls it; None if not known.
    forward_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class TimeSample:
    """One answer and what it took."""

    tokens: list[int]
    finish_reason: str
    metrics: Metrics
    step_tokens: list[int]  # tokens that each verify step emitted
    timing: Timing
    peak_memory_bytes: int | None  # of the allocator; None on a CPU
    warm: bool | None  # whether the drafter began with what earlier prompts left


@dataclass(frozen=True, kw_only=True)
class TimeSplit:
    """Where the time of one answer went, each stamp taken after waiting for the device."""

    phases: dict[str, float]  # milliseconds of prefill and of the phases of the loop
    wall_ms: float  # measured around all of them


@dataclass(kw_only=True)
class Turn:
    """A turn of a conversation as one side answered it, in one or more rounds."""

    sequence: int  # number among all turns of the suite, which keys the noise
    num_prompt_tokens: int
    tokens: list[int]
    text: str
    finish_reason: str
    metrics: Metrics  # counts, the same in every round, and medians of the rounds' seconds
    step_tokens: list[int]  # tokens that each verify step emitted
    rounds: list[Timing]
    peak_memory_bytes: int | None
    split: TimeSplit | None = None
    target_logprob: float | None = None  # mean over the tokens, under the target's own law
    warm: bool | None = None  # whether the drafter began with what earlier prompts left

    def as_dict(self) -> dict[str, Any]:
        """Plain values, from which `of` makes the same turn."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Turn:
        """The turn of these plain values."""
        metrics = {**values["metrics"]}
        metrics["depths"] = [DepthCount(**counts) for counts in metrics["depths"]]
        split = None if values["split"] is None else TimeSplit(**values["split"])
        rounds = [Timing(**times) for times in values["rounds"]]
        return cls(**{**values, "metrics": Metrics(**metrics), "rounds": rounds, "split": split})


@dataclass
class Side:
    """One way to answer."""

    name: str
    engine: Engine
    # Token ids of its own answers to the earlier turns of the conversation.
    before: list[list[int]] = field(default_factory=list)
    drafter: str | None = None  # the word of its drafter
    exact: str | None = None  # name of the side whose text and speed it is compared with
    _memory: Any = None

    def begin(self) -> None:
        """Start a conversation."""
        self.before = []

    def remember(self) -> None:
        """Take down what the drafter has learnt from earlier prompts."""
        self._memory = memory_of(self.engine.components.drafter)

    def recall(self) -> None:
        """Let the next answer begin with what was taken down, not with what came since."""
        drafter = self.engine.components.drafter
        if self._memory is not None and isinstance(drafter, Remembers):
            drafter.recall(self._memory)

    @property
    def learns(self) -> bool:
        """Whether its drafter learns from prompt to prompt."""
        return memory_of(self.engine.components.drafter) is not None

    def encode(self, record: PromptRecord) -> list[int]:
        """Ids of the conversation up to its next turn, with this side's own answers so far."""
        return encode_turns(self.engine, record, self.before)

    def answer(self, prompt: Sequence[int], sequence: int) -> TimeSample:
        """Answer once with the ordinary clock. sequence: keys the noise."""
        target = self.engine.components.target
        if target.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(target.device)
        with watched_forwards(target, target.device) as watched:
            sample = self._answer(prompt, sequence)
        timing = replace(sample.timing, forward_s=sum(watched.seconds()))
        return replace(sample, timing=timing)

    def _answer(self, prompt: Sequence[int], sequence: int) -> TimeSample:
        device = self.engine.components.target.device
        meter = Meter(device)
        decoding = self.engine.decoding(observers=[meter])
        tokens: list[int] = []
        stamps: list[float] = []  # of the prefill's token, then of each step's
        counts: list[int] = []
        meter.begin()
        start = time.perf_counter()
        for emission in decoding.run(prompt, sequence=sequence):
            stamps.append(time.perf_counter())
            counts.append(len(emission.tokens))
            tokens += emission.tokens
        metrics, step_tokens = meter.end(first_tokens=counts[0]), counts[1:]
        _check(metrics, counts)
        assert decoding.finish_reason is not None
        timing = Timing(
            first_s=stamps[0] - start,
            prefill_s=metrics.prefill_s,
            decode_s=metrics.decode_s,
            total_s=metrics.total_s,
            step_ms=[1e3 * (end - begin) for begin, end in pairwise(stamps)],
        )
        return TimeSample(
            tokens=tokens,
            finish_reason=decoding.finish_reason,
            metrics=metrics,
            step_tokens=step_tokens,
            timing=timing,
            peak_memory_bytes=_peak(device),
            warm=is_warm(self.engine.components.drafter),
        )

    def split(self, prompt: Sequence[int], sequence: int) -> TimeSplit | None:
        """Answer once more with a clock that waits for the device at every stamp."""
        device = self.engine.components.target.device
        meter = Meter(device, synchronise=True)
        clock = Clock(device, synchronise=True)
        decoding = self.engine.decoding(observers=[meter], clock=clock)
        start = time.perf_counter()
        meter.begin()
        for _ in decoding.run(prompt, sequence=sequence):
            pass
        wall = time.perf_counter() - start
        metrics = meter.end()
        phases = {"prefill": 1e3 * metrics.prefill_s, **metrics.phase_ms}
        return TimeSplit(phases=phases, wall_ms=1e3 * wall)


def sides(engine: Engine, *, baseline: bool) -> list[Side]:
    """The method and, before it, drafter=none on the same target, runtime and cache."""
    method = Side(METHOD, engine)
    return [plain_side(BASELINE, engine), method] if baseline else [method]


def plain_side(name: str, engine: Engine) -> Side:
    """A side with drafter=none on the components of an engine.

    Its rule is match, since without a draft every lossless rule is the same.
    """
    chain: Any = TREES.get("chain")
    parts = replace(
        engine.components,
        drafter=DRAFTERS.get("none")(),
        tree=chain(depth=1, max_nodes=2, proposal="place"),
        accept=RULES.get("match")(),
        how="place",
    )
    return Side(name, prepared(Engine(parts, engine.settings)), drafter="none")


def turn_of(
    side: Side, prompt: Sequence[int], sequence: int, samples: Sequence[TimeSample]
) -> Turn:
    """One record of all rounds in which a side answered a turn; samples: one a round."""
    first = samples[0]
    for other in samples[1:]:
        assert other.tokens == first.tokens, "the same prompt and seed gave another text"
    metrics = first.metrics
    for name in ("prefill_s", "decode_s", "total_s"):
        median = statistics.median(getattr(sample.timing, name) for sample in samples)
        setattr(metrics, name, median)
    # Speed and the split of time are measured apart.
    metrics.phase_ms = {}
    peaks = [s.peak_memory_bytes for s in samples if s.peak_memory_bytes is not None]
    return Turn(
        sequence=sequence,
        num_prompt_tokens=len(prompt),
        tokens=first.tokens,
        text=side.engine.decode(first.tokens),
        finish_reason=first.finish_reason,
        metrics=metrics,
        step_tokens=first.step_tokens,
        rounds=[sample.timing for sample in samples],
        peak_memory_bytes=max(peaks, default=None),
        warm=first.warm,
    )


def _check(metrics: Metrics, counts: Sequence[int]) -> None:
    """Assert what metrics must satisfy beside. counts: tokens of the prefill, then of each step."""
    metrics.check()
    step_tokens = counts[1:]
    assert metrics.num_tokens == sum(counts)
    assert sum(step_tokens) == metrics.num_step_tokens
    assert len(step_tokens) == metrics.num_steps
    assert metrics.num_accepted == sum(depth.accepted for depth in metrics.depths)
    assert metrics.num_accepted <= metrics.num_drafted < max(metrics.num_draft_rows, 1)


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
