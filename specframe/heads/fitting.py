"""How a loaded head fits a target: its width, the layers that it taps, the rows of its head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from specframe.errors import ConfigError
from specframe.heads.eagle_net import Eagle3Net, EagleNet
from specframe.heads.embeddings import Table, hidden_size, read_ids
from specframe.runtime.base import Runtime
from specframe.target.base import Target


class HeadNet(Protocol):
    """The network of a head."""

    hidden_size: int  # of the target that it was trained for


Net = TypeVar("Net", bound=nn.Module)


def check_width(net: HeadNet, target: Target) -> None:
    """Raises ConfigError unless the network was made for states as wide as the target's."""
    size = hidden_size(target)
    if net.hidden_size != size:
        raise ConfigError(
            f"drafter.path: this head is for a target of hidden size {net.hidden_size}, "
            f"{target.name} has {size}; use a head of this target"
        )


def placed(net: Net, target: Target) -> Net:
    """The network on the target's device, in its dtype, frozen."""
    return net.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)


def check_vocabulary_size(said: int | None, target: Target) -> None:
    """Raises ConfigError if a head's configuration names another size of vocabulary."""
    if said is not None and said != target.vocab_size:
        raise ConfigError(
            f"drafter.path: this head is for a vocabulary of {said} tokens (vocab_size), "
            f"{target.name} has {target.vocab_size}; use a head of this target"
        )


def listed_ids(vocabulary: str | None, target: Target) -> Tensor | None:
    """[Vd] increasing target ids of the file drafter.vocabulary, on the target's device; None for
    no file. Raises ConfigError."""
    if vocabulary is None:
        return None
    where = "drafter.vocabulary"
    return read_ids(vocabulary, vocab_size=target.vocab_size, where=where).to(target.device)


def fused_layers(
    requested: Sequence[int] | None, net: Eagle3Net, target: Target
) -> tuple[int, ...]:
    """The blocks whose input is tapped: those requested, else 2, L // 2 and L - 3.

    Raises ConfigError if they repeat, do not exist, or are not what the network's fc was made for.
    """
    count = target.num_layers
    if requested is None and count < 7:
        raise ConfigError(
            f"drafter.layers=null: in the {count} blocks of {target.name} the usual 2, L // 2 and "
            "L - 3 collide; name the blocks that the head was trained on"
        )
    layers = (2, count // 2, count - 3) if requested is None else tuple(requested)
    shown = f"drafter.layers={list(layers)}"
    width, size = net.options.features * net.options.feature_size, hidden_size(target)
    if len(layers) * size != width:
        raise ConfigError(
            f"{shown}: the head fuses {width} values, {len(layers)} layers of {target.name} give "
            f"{len(layers) * size}; use the head of this target, or as many layers as it fuses"
        )
    if len(set(layers)) != len(layers) or not all(0 <= layer <= count for layer in layers):
        raise ConfigError(
            f"{shown}: {target.name} has blocks 0 .. {count - 1} (and {count}, what leaves the "
            "last); give each once"
        )
    return layers


@torch.no_grad()
def eagle3_head(
    net: Eagle3Net, target: Target, vocabulary: str | None, runtime: Runtime
) -> tuple[Table, Tensor | None]:
    """The head over the rows that the target (and the file of ids) knows, and their target ids.

    Raises ConfigError if the head is for another vocabulary, or none of its rows is left.
    """
    ids, weight = net.target_ids(), net.lm_head.weight
    vocab_size = net.options.vocab_size or target.vocab_size
    if not net.options.mapped and len(ids) < vocab_size:
        raise ConfigError(
            f"drafter.path: the head has {len(ids)} rows and no d2t that maps them to the "
            f"{target.vocab_size} tokens of {target.name}; export it with d2t"
        )
    known = ids < target.vocab_size
    listed = listed_ids(vocabulary, target)
    if listed is not None:
        known = known & torch.isin(ids, listed)
    if not bool(known.any()):
        raise ConfigError(
            f"drafter.vocabulary={vocabulary}: none of these tokens is among the "
            f"{len(ids)} that the head knows"
        )
    ids = ids[known]
    if len(ids) < len(weight):
        weight = weight[known]
    table = runtime.weights.pack_table(weight)

    def head(states: Tensor) -> Tensor:
        return table(net.normed(states))

    same = len(ids) == target.vocab_size
    return head, None if same else ids


def eagle_head(net: EagleNet, ids: Tensor | None, target: Target, runtime: Runtime) -> Table:
    """The output head of an EAGLE-1/2 file, for tokens ids [Vd] (None: all). Raises ConfigError."""
    assert net.lm_head is not None
    weight = net.lm_head.weight
    if len(weight) != target.vocab_size:
        raise ConfigError(
            f"drafter.path: lm_head.weight has {len(weight)} rows, {target.name} has "
            f"{target.vocab_size} tokens; use the head of this target"
        )
    if ids is not None:
        weight = weight[ids]
    return runtime.weights.pack_table(weight)
