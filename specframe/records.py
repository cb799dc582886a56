"""What lives longer than a pass: the sequence, a step's record and who sees it, an inner loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.types import Draft, TargetOutput, Verdict


class NodeLaws(Protocol):
    """The target's processed laws at the nodes of a draft."""

    def at(self, nodes: Tensor, depth: int) -> Tensor:
        """[M, V] at rows nodes [M], all `depth` deep."""

    def known(self) -> Tensor:
        """[N] probability of each row's token by the law at its parent; NaN where none was made."""


@dataclass(kw_only=True)
class Context:
    """One sequence as drafters, rules and processors see it: prompt and all emitted tokens.

    `tokens` (host) and `ids` [T] (device) hold the same; the last one is the root.
    """

    tokens: list[int]
    buffer: Tensor  # [at least T] the tokens on the device, with room to grow
    prompt_length: int
    sequence: int = 0  # keys the noise of this sequence
    cache: CacheManager | None = None  # the target's, for drafters that share it
    reach: int | None = None  # positions that the text may come to
    max_columns: int = 0  # that a drafter's own cache can need: every token, one step's frontiers

    @classmethod
    def of(cls, tokens: Sequence[int], device: torch.device, **fields: Any) -> Context:
        """A context of these tokens, all of them prompt; fields: its other ones."""
        buffer = torch.empty(max(64, 2 * len(tokens)), dtype=torch.long, device=device)
        context = cls(tokens=[], buffer=buffer, prompt_length=len(tokens), **fields)
        context.extend(tokens)
        return context

    @property
    def ids(self) -> Tensor:
        """[T] the tokens on the device."""
        return self.buffer[: len(self.tokens)]

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens."""
        start, stop = len(self.tokens), len(self.tokens) + len(tokens)
        if stop > self.buffer.shape[0]:
            grown = self.buffer.new_empty(2 * stop)
            grown[:start] = self.buffer[:start]
            self.buffer = grown
        self.buffer[start:stop] = torch.tensor(list(tokens), dtype=torch.long)
        self.tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.tokens[length:]


@dataclass(kw_only=True)
class StepRecord:
    """Everything of one verify pass; tensors live until the next pass, who keeps one copies it.

    path: accepted rows, tokens: emitted tokens (host), after the cut by stop conditions.
    num_accepted: drafted tokens that were emitted. was_cut: the last token is a drafted one, since
    a stop condition cut the verdict there. marks: (phase, stamp) of the step's clock.
    """

    draft: Draft
    laws: NodeLaws
    out: TargetOutput
    verdict: Verdict
    path: list[int]
    tokens: list[int]
    num_accepted: int
    was_cut: bool
    length_before: int
    finish_reason: str | None = None
    readback: list[int] = field(default_factory=list)
    marks: list[tuple[str, object]] = field(default_factory=list)


@dataclass(frozen=True)
class Emission:
    """Tokens that became certain together, and the step that emitted them."""

    tokens: list[int]
    record: StepRecord | None  # None: the token of the prefill


class Observer(Protocol):
    """Anything that wants to see finished steps."""

    def observe(self, record: StepRecord) -> None:
        """Store what is of use; tensors of the record live until the next pass."""


@runtime_checkable
class InnerLoop(Protocol):
    """A decode loop used as a drafter's engine (cascade, Ouroboros)."""

    def begin(self, prompt: Sequence[int], *, sequence: int = 0) -> list[int]:
        """Start on a prompt; returns the first emitted token in a list."""

    def step(self) -> StepRecord:
        """One draft and one verify pass."""

    def truncate(self, length: int, tail: Sequence[int] = ()) -> None:
        """Go back to the first `length` tokens of the context, then append `tail`."""

    def room(self) -> int:
        """Tokens that may still be emitted; at 0 there is no further step."""


class TrueText(InnerLoop, Protocol):
    """The loop of the run itself without a draft: same target, sampling, stops and noise."""


@runtime_checkable
class Remembers(Protocol):
    """A drafter that may begin a sequence with what earlier ones left."""

    warm: bool | None  # whether the sequence began so; None where nothing is kept

    def remembered(self) -> Any:
        """What the next sequence will begin with of earlier ones; None where nothing is kept."""

    def recall(self, memory: Any) -> None:
        """Let the next sequence begin with what `remembered` gave, whatever came since."""


def is_warm(drafter: object) -> bool | None:
    """Whether a drafter's sequence began with what earlier ones left; None: it keeps nothing."""
    return drafter.warm if isinstance(drafter, Remembers) else None


def memory_of(drafter: object) -> Any:
    """What a drafter's next sequence will begin with of earlier ones; None: nothing."""
    return drafter.remembered() if isinstance(drafter, Remembers) else None
