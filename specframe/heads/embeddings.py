"""Embedding and head of a draft network: its own, or the target's, whole or a part of its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from specframe.errors import ConfigError
from specframe.runtime.base import Runtime
from specframe.target.base import Target

Table = Callable[[Tensor], Tensor]  # an embedding or an output head
_ROWS = 256  # rows of a table that are read together
_LARGE = 4096.0  # a logit far beyond any soft cap


@torch.no_grad()
def hidden_size(target: Target) -> int:
    """H, the width of a target's states."""
    return target.embed(torch.zeros(1, dtype=torch.long, device=target.device)).shape[-1]


@torch.no_grad()
def embedding(own: nn.Embedding | None, target: Target, *, hidden: int, where: str) -> Table:
    """Tokens [F] -> embeddings [F, H] in the target's dtype.

    It is the table `own` of the head's file if that differs from the target's, else the target's.
    Raises ConfigError, naming `where`, if neither serves a network of width `hidden`.
    """
    width = hidden_size(target)
    if own is None:
        if width != hidden:
            raise ConfigError(
                f"{where}: the head is {hidden} wide and has no embed_tokens.weight, "
                f"{target.name} is {width} wide; it was trained for another target"
            )
        return target.embed
    if width == hidden and _equal(own, target):
        return target.embed
    if own.num_embeddings < target.vocab_size:
        raise ConfigError(
            f"{where}: embed_tokens.weight has {own.num_embeddings} rows, {target.name} has "
            f"{target.vocab_size} tokens; it was trained for another target"
        )
    return own.to(device=target.device, dtype=target.dtype)


def _equal(own: nn.Embedding, target: Target) -> bool:
    shared = min(own.num_embeddings, target.vocab_size)
    for start in range(0, shared, 16 * _ROWS):
        ids = torch.arange(start, min(start + 16 * _ROWS, shared), device=target.device)
        theirs = target.embed(ids)
        if not torch.equal(own.weight[ids.to(own.weight.device)].to(theirs), theirs):
            return False
    return True


def read_ids(file: str, *, vocab_size: int, where: str) -> Tensor:
    """[Vd] increasing target ids from a file: a JSON list, or one id per line.

    Raises ConfigError naming `where` for a missing file, a value that is no id, or a repeated one.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{where}={file}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
        words = json.loads(text) if text.lstrip().startswith("[") else text.split()
        ids = [int(word) for word in words]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{where}={file}: expected token ids, as a JSON list or one per line ({error})"
        ) from error
    bad = [token for token in ids if not 0 <= token < vocab_size]
    if bad or not ids:
        problem = f"{bad[0]} is no token" if bad else "it is empty"
        raise ConfigError(f"{where}={file}: {problem}; ids run from 0 to {vocab_size - 1}")
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{where}={file}: a token is listed twice; list each once")
    return torch.tensor(sorted(ids))


@torch.no_grad()
def target_head(target: Target, ids: Tensor | None, runtime: Runtime) -> Table:
    """States [F, H] -> logits [F, Vd] of target tokens ids [Vd] (None: all) by the target's head.

    The rows are read through `Target.head` once, on unit vectors, so that only they are multiplied
    with each state afterwards. A head that is not linear (soft caps) runs in full.
    """
    device, dtype = target.device, target.dtype

    def whole(states: Tensor) -> Tensor:
        return target.head(states.to(dtype)).to(device)

    if ids is None:
        return whole
    rows, size = ids.to(device), hidden_size(target)
    zero = whole(torch.zeros(1, size, dtype=dtype, device=device))
    unit = torch.eye(1, size, dtype=dtype, device=device)
    straight = _LARGE * (whole(unit) - zero).float()
    bent = (whole(_LARGE * unit) - zero).float() - straight
    if bool(bent.abs().max() > 0.02 * straight.abs().max()):
        return lambda states: whole(states).index_select(-1, rows)
    columns = []
    for start in range(0, size, _ROWS):
        count = min(_ROWS, size - start)
        block = torch.zeros(count, size, dtype=dtype, device=device)
        block[:, start : start + count] = torch.eye(count, dtype=dtype, device=device)
        columns.append((whole(block) - zero).index_select(-1, rows))
    weight = torch.cat(columns).t().contiguous()  # [Vd, H]
    bias = zero[0, rows] if bool(zero.any()) else None
    return runtime.weights.pack_table(weight, bias)
