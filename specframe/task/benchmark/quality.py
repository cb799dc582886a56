"""How good a text is: agreement with the exact text, its probability, and scores of suites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from specframe.cache.base import CACHES
from specframe.session.engine import Engine
from specframe.target.base import causal_rows

_ROWS = 128  # of logits at a time: 25 MB at a vocabulary of 49k
# A minus behind a digit or a bracket is a difference or a range.
_NUMBER = re.compile(r"(?:(?<![\d)\]])[-\u2212])?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_FINAL = "####"  # what GSM8K puts before the number; others head their sections with it
_MARKED = re.compile(rf"{_FINAL}[ \t$*]*({_NUMBER.pattern})(?!\d*[.):][ \t]+\S)")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One answer compared with the exact one."""

    num_common: int  # tokens before the first difference
    num_equal: int  # places with the same token
    num_longer: int  # tokens of the longer of the two
    # By how much the target prefers the exact token at the first difference, in logits.
    logit_gap: float | None = None

    @property
    def same(self) -> bool:
        """Whether the texts are equal, ends included."""
        return self.num_common == self.num_longer


def agreement(tokens: Sequence[int], exact: Sequence[int]) -> Agreement:
    """Compare two answers token by token."""
    pairs = list(zip(tokens, exact, strict=False))
    return Agreement(
        num_common=len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))),
        num_equal=sum(mine == other for mine, other in pairs),
        num_longer=max(len(tokens), len(exact)),
    )


@torch.inference_mode()
def text_logits(engine: Engine, prompt: Sequence[int], tokens: Sequence[int]) -> list[Tensor]:
    """Raw logits of the target at the place of each of `tokens` behind `prompt`.

    The [T, V] logits come in pieces of consecutive tokens, to bound the memory.
    """
    target = engine.components.target
    cache = CACHES.get("dynamic")()
    ids = [*prompt, *tokens[:-1]]
    cache.open(0, columns=len(ids), device=target.device)
    cache.reach[0] = max(len(ids), len(prompt) + engine.settings.max_new_tokens - 1)
    if len(prompt) > 1:
        target.prefill(ids[: len(prompt) - 1], cache)
    pieces = []
    for start in range(len(prompt) - 1, len(ids), _ROWS):
        chunk = torch.tensor(ids[start : start + _ROWS], device=target.device)
        rows = causal_rows(chunk, cache)
        out = target.forward(rows, cache, want=torch.arange(len(chunk), device=target.device))
        assert out.logits is not None
        pieces.append(out.logits)
        cache.commit(rows.slots, [len(chunk)], moved=[False])
    return pieces


@torch.inference_mode()
def mean_logprob(engine: Engine, prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """Mean over `tokens` of log p(token | the tokens before it) under the target, in nats.

    The law is that of temperature 1 without processors.
    """
    total, start = 0.0, 0
    for logits in text_logits(engine, prompt, tokens):
        chosen = torch.tensor(tokens[start : start + len(logits)], device=logits.device)
        laws = logits.float().log_softmax(-1)
        total += float(laws.gather(1, chosen[:, None]).sum())
        start += len(logits)
    return total / len(tokens)


def logit_gap(engine: Engine, prompt: Sequence[int], exact: Sequence[int], got: int) -> float:
    """By how much the target prefers the last token of `exact` to the token `got`, in logits."""
    last = text_logits(engine, prompt, exact)[-1][-1]
    return float(last[exact[-1]] - last[got])


def final_number(text: str) -> float | None:
    """The number an answer ends with: the last one behind `####`, or else its last number."""
    numbers = _MARKED.findall(text) or _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "").replace("\u2212", "-")) if numbers else None


def number_is_right(text: str, reference: str | None) -> bool | None:
    """Whether an answer ends with the number of the reference solution.

    None where the reference has no number that is marked with `####`, as GSM8K marks it.
    """
    if reference is None or _FINAL not in reference:
        return None
    return final_number(text) == final_number(reference)
