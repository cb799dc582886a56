"""The components of one engine, and what they allow together: prompts, lengths, drafts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch

from specframe.accept.base import AcceptRule
from specframe.cache.base import CacheManager
from specframe.drafter.base import Drafter
from specframe.errors import ConfigError
from specframe.records import Context, StepRecord
from specframe.registry import word_of
from specframe.runtime.base import Runtime
from specframe.target.base import Target
from specframe.tree.base import TreePolicy
from specframe.types import Budget, Draft, How

# What the host reads of a pass: whether its logits, and what processors made of them, are sound.
NOT_FINITE, SOUND, SPOILT = 0, 1, 2
S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
# Engines of one process share models, whose kernels and graphs keep buffers between passes.
_PASSES = threading.RLock()


def exclusive(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorator of a method that runs passes: one thread at a time, without gradients."""

    @wraps(verb)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with _PASSES, torch.inference_mode():
            return verb(self, *args, **kwargs)

    return run


@dataclass(frozen=True, kw_only=True)
class Components:
    """One component per axis."""

    target: Target
    drafter: Drafter
    tree: TreePolicy
    accept: AcceptRule
    cache: CacheManager
    runtime: Runtime
    how: How  # how the nodes of a tree are made: `tree.proposal`, resolved
    # Taken for a whole answer; an answer that is streamed gives way to a later one instead.
    notices: set[str] = field(default_factory=set, repr=False, compare=False)  # said already
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def words(self) -> str:
        """The words of the axes, as in `target=toy, drafter=none`."""
        axes = ("drafter", "tree", "accept", "cache", "runtime")
        words = [f"{axis}={word_of(getattr(self, axis))}" for axis in axes]
        return ", ".join([f"target={self.target.name}", *words])

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raises ConfigError for a prompt that the target cannot read."""
        target = self.target
        if not prompt:
            raise ConfigError("the prompt is empty; give at least one token")
        if not 0 <= min(prompt) <= max(prompt) < target.vocab_size:
            raise ConfigError(
                f"the prompt has token ids outside of 0 .. {target.vocab_size - 1}, the "
                f"vocabulary of {target.name}"
            )
        limit = target.gives.max_positions
        if limit is not None and len(prompt) > limit:
            raise ConfigError(
                f"the prompt has {len(prompt)} tokens, the target's context is {limit}; shorten it"
            )

    def max_columns(self, prompt_length: int, max_new_tokens: int) -> int:
        """Columns that a cache can need: every token, one draft and the nodes it expands."""
        aux = self.drafter.traits.needs.aux_rows
        step = self.tree.max_nodes + self.tree.max_expanded + aux
        return prompt_length + max_new_tokens + step

    def limit(self, prompt_length: int, max_new_tokens: int) -> int:
        """Tokens the context may reach: what was asked for, as far as every part has room.

        The cache must be opened for the sequence. A drafter of a shorter context ends none.
        """
        limit = prompt_length + max_new_tokens
        for room in (self.target.gives.max_positions, self.cache.capacity):
            if room is not None:
                # The last token is emitted, never fed, so it needs no place of its own.
                limit = min(limit, room + 1)
        return limit

    def budget(self, length: int, limit: int) -> Budget:
        """For a context of `length` tokens: no node that could not be emitted, stored or drafted.

        Says once that drafting has ended where the drafter's context does.
        """
        rows, needs = self.tree.max_nodes, self.drafter.traits.needs
        if self.cache.capacity is not None:
            # A drafter that runs the target's own layers keeps its nodes in the target's cache.
            scratch = self.tree.max_expanded if needs.partial_layers else 0
            rows = min(rows, self.cache.capacity - self.cache.lengths[0] - scratch)
        depth, room = limit - length - 1, self.drafter.traits.max_positions
        if room is not None and depth > 0:
            # Children need no place in the drafter's context, only the nodes that it reads do.
            depth = min(depth, max(0, room - length + 1))
            if depth == 0 and not self.notices:
                text = f"the drafter's context is {room} tokens; the text goes on without a draft"
                self.notices.add(text)
                sys.stderr.write(f"specframe: {text}\n")
        return Budget(rows=max(1, rows - needs.aux_rows), depth=depth)

    def with_slots(self, draft: Draft) -> Draft:
        """A draft whose rows have slots in the target's cache."""
        if draft.slots is not None:
            return draft
        fresh = self.cache.reserve([draft.num_rows])
        return replace(draft, slots=fresh.slots, columns=fresh.columns, in_order=True)

    def has_room_for_aux(self, draft: Draft) -> bool:
        """Whether the drafter's auxiliary rows fit the cache beside the root, and are wanted."""
        capacity, rows = self.cache.capacity, self.drafter.traits.needs.aux_rows
        if rows and not draft.takes_aux:
            return False
        return capacity is None or capacity - self.cache.lengths[0] > rows

    def context(
        self, prompt: Sequence[int], *, sequence: int, columns: int, max_new_tokens: int
    ) -> Context:
        """The context of a sequence that begins with a prompt, beside the target's opened cache.

        How far the text may come is said here, to the cache and to the drafter.
        """
        # The last token is emitted, never fed.
        self.cache.reach[0] = reach = self.limit(len(prompt), max_new_tokens) - 1
        return Context.of(
            prompt,
            self.target.device,
            sequence=sequence,
            cache=self.cache,
            reach=reach,
            max_columns=columns,
        )

    def commit(self, record: StepRecord) -> None:
        """Keep the keys of the root and of the accepted path, and forget the other fresh ones.

        A step that emits nothing keeps none: the root goes on to be the last token of the context.
        """
        if not record.tokens:
            self.cache.discard(0)
            return
        draft, rows = record.draft, [0, *record.path]
        moved = not draft.in_order or rows != list(range(len(rows)))
        assert draft.slots is not None
        index = torch.tensor(rows, device=draft.tokens.device)
        self.cache.commit(draft.slots[index], [len(rows)], moved=[moved])

    def check_sound(self, state: int) -> None:
        """Raises ConfigError if the logits of a pass were not finite, or processors spoilt them."""
        if state == SPOILT:
            raise ConfigError(
                "sampling.processors gave scores that are not a number (NaN); correct them, or "
                "leave them out"
            )
        if state == NOT_FINITE:
            raise ConfigError(
                f"{self.target.name} gave logits that are not finite in {self.target.dtype}; "
                "try target.dtype=float32"
            )
