"""Texts that answers are compared with: of full forwards without a cache, and of drafter=none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from specframe.cache.base import CACHES
from specframe.drafter.base import DRAFTERS
from specframe.law.streams import Streams
from specframe.session.engine import Engine
from specframe.tree.base import TREES

Reference = Callable[[Sequence[int], int], list[int]]  # (prompt, sequence) -> answer


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first difference of a text from its reference."""

    place: int  # of the token, counted from 1
    got: int  # the token of the text; -1 if the text has ended
    wanted: int  # the token of the reference; -1 if the reference has ended
    gap: float  # by how much the reference's token scores better, in logits


@torch.inference_mode()
def full_forward(engine: Engine, tokens: Sequence[int], reach: int) -> Tensor:
    """[V] raw logits after `tokens`, from one pass over all of them into an empty cache.

    reach: positions that the text may come to.
    """
    target = engine.components.target
    cache = CACHES.get("dynamic")()
    cache.open(0, columns=len(tokens), device=target.device)
    cache.reach[0] = reach
    return target.prefill(tokens, cache).logits[-1]


@torch.inference_mode()
def preferences(
    engine: Engine, tokens: Sequence[int], prompt_length: int, sequence: int, max_new_tokens: int
) -> Tensor:
    """[V] scores of which the next token is the arg max, in an answer of at most `max_new_tokens`.

    At T = 0 these are the processed logits, at T > 0 the log-probabilities plus the noise of the
    seed.
    """
    sampling = engine.sampling(prompt_length)
    ids = torch.tensor([list(tokens)], device=engine.components.target.device)
    logits = full_forward(engine, tokens, prompt_length + max_new_tokens - 1)[None]
    if sampling.greedy:
        return sampling.scores(ids, logits)[0]
    law = sampling.law(ids, logits)[0].double()
    streams = Streams(seed=engine.settings.seed, sequence=sequence)
    vocabulary = torch.arange(len(law), device=law.device)
    return law.log() - streams.noise(len(tokens), vocabulary).log()


def greedy_reference(engine: Engine, max_new_tokens: int) -> Reference:
    """The reference that takes the arg max of a full forward for each token, up to an end token."""

    def answer(prompt: Sequence[int], sequence: int) -> list[int]:
        tokens = list(prompt)
        while len(tokens) < len(prompt) + max_new_tokens:
            scores = preferences(engine, tokens, len(prompt), sequence, max_new_tokens)
            if scores.isneginf().all():  # every token is banned
                break
            tokens.append(int(scores.argmax()))
            if tokens[-1] in engine.eos_ids:
                break
        return tokens[len(prompt) :]

    return _stored(answer)


def plain_reference(engine: Engine, max_new_tokens: int) -> Reference:
    """The reference that decodes with the same engine and drafter=none."""
    chain: Any = TREES.get("chain")
    parts = replace(
        engine.components,
        drafter=DRAFTERS.get("none")(),
        tree=chain(depth=1, max_nodes=2, proposal="place"),
        how="place",
    )
    alone = Engine(parts, engine.settings)

    def answer(prompt: Sequence[int], sequence: int) -> list[int]:
        return alone.generate(prompt, sequence=sequence, max_new_tokens=max_new_tokens).tokens

    return _stored(answer)


def _stored(answer: Reference) -> Reference:
    """The same reference with its answers stored, since the negative control needs them again."""
    answers: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def stored(prompt: Sequence[int], sequence: int) -> list[int]:
        key = (tuple(prompt), sequence)
        if key not in answers:
            answers[key] = answer(prompt, sequence)
        return answers[key]

    return stored


def compare(
    engine: Engine,
    prompt: Sequence[int],
    tokens: Sequence[int],
    reference: Reference,
    *,
    sequence: int,
    max_new_tokens: int,
) -> Divergence | None:
    """The first difference of an answer from the reference; None if there is none.

    A stop string may end the answer before the reference, which is no difference.
    """
    wanted = reference(prompt, sequence)
    if engine.settings.stop.strings or engine.settings.stop.criteria:
        wanted = wanted[: max(1, len(tokens))]
    for place, (ours, theirs) in enumerate(zip_longest(tokens, wanted, fillvalue=-1)):
        if ours != theirs:
            context = [*prompt, *wanted[:place]]
            gap = torch.inf
            if -1 not in (ours, theirs):
                scores = preferences(engine, context, len(prompt), sequence, max_new_tokens)
                gap = float(scores[theirs] - scores[ours])
            return Divergence(place=place + 1, got=ours, wanted=theirs, gap=gap)
    return None
