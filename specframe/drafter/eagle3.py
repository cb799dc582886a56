"""EAGLE-3: three fused layers of the target, an own head over few tokens, its state fed back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.checkpoint.choice import Choice, settled
from specframe.checkpoint.eagle import load_eagle3
from specframe.drafter.base import DRAFTERS
from specframe.drafter.net.drafting import FeatureDrafter
from specframe.drafter.net.heads import Eagle3Net
from specframe.drafter.net.tables import Table, embedding, hidden_size, read_ids
from specframe.errors import ConfigError
from specframe.runtime.base import Runtime
from specframe.target.base import Target
from specframe.types import Needs


@DRAFTERS.register("eagle3")
class Eagle3(FeatureDrafter):
    """a(t) = layer([norm(e(x(t+1))); norm(g(t))]), logits = own head(norm(a(t))) for x(t+2).

    g(t) = fc([r2; rm; rh](t)) from the residual streams that enter blocks 2, L // 2 and L - 3,
    un-normed; a drafted token is fed with its parent's a instead. The head covers the most frequent
    tokens, mapped to the target's by d2t.
    path: hub name, folder or file of a head, null for the one that ships for the target. layers:
    blocks whose input is fused, null for the checkpoint's own. vocabulary: file of the token ids
    that the draft may propose, null for all it knows, auto for the file beside the head.
    Lossless under every lossless rule. Needs: features of all committed tokens, own cache.
    Draft forwards per step: one per expanded level. Target forwards per step: 1.
    Paper: EAGLE-3, arXiv 2503.01840.
    """

    # The lowest of the usual three; a loaded head names its own.
    needs = Needs(taps=("resid:2",), own_cache=True)

    def __init__(
        self,
        *,
        path: str | None,
        layers: list[int] | None,
        vocabulary: str | None,
        target: Target,
        new_cache: Callable[[], CacheManager],
        runtime: Runtime,
    ) -> None:
        chosen = Choice.of("eagle3", path, vocabulary, target.name)
        net = load_eagle3(chosen.path)
        self._adopt(net, (layers, chosen.vocabulary), target, new_cache(), runtime)
        if self._embed == target.embed:
            net.embed_tokens = None  # a copy of the target's

    @classmethod
    def settle(cls, values: Mapping[str, Any], target: str) -> dict[str, Any]:
        return settled("eagle3", values, target)

    @classmethod
    def of(
        cls,
        net: Eagle3Net,
        *,
        target: Target,
        cache: CacheManager,
        runtime: Runtime,
        layers: list[int] | None = None,
        vocabulary: str | None = None,
    ) -> Eagle3:
        """A network that is at hand already (training, notebooks, tests); it is moved and cast."""
        self = cls.__new__(cls)
        self._adopt(net, (layers, vocabulary), target, cache, runtime)
        return self

    def _adopt(
        self,
        net: Eagle3Net,
        asked: tuple[list[int] | None, str | None],
        target: Target,
        cache: CacheManager,
        runtime: Runtime,
    ) -> None:
        layers, vocabulary = asked
        taps = fused_layers(layers or net.options.taps, net, target)
        self.needs = Needs(taps=tuple(f"resid:{one}" for one in taps), own_cache=True)
        own = net.embed_tokens
        embed = embedding(own, target, hidden=net.hidden_size, where="drafter.path")
        net = net.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)
        head, ids = own_head(net, target, vocabulary, runtime)
        runtime.draft(net, tables=[net.lm_head])
        super().__init__(
            net=net,
            embed=embed,
            head=head,
            ids=ids,
            cache=cache,
            runtime=runtime,
            device=target.device,
            dtype=target.dtype,
        )


def fused_layers(asked: Sequence[int] | None, net: Eagle3Net, target: Target) -> tuple[int, ...]:
    """Blocks whose input is tapped: those asked for, else 2, L // 2 and L - 3.

    Raises ConfigError if they repeat, do not exist, or are not what the network's fc was made for.
    """
    count = target.num_layers
    if asked is None and count < 7:
        raise ConfigError(
            f"drafter.layers=null: in the {count} blocks of {target.name} the usual 2, L // 2 and "
            "L - 3 collide; name the blocks that the head was trained on"
        )
    layers = (2, count // 2, count - 3) if asked is None else tuple(asked)
    shown = f"drafter.layers={list(layers)}"
    width, size = net.options.features * net.options.feature_size, hidden_size(target)
    if len(layers) * size != width:
        raise ConfigError(
            f"{shown}: the head fuses {width} values, {len(layers)} layers of {target.name} give "
            f"{len(layers) * size}; use the head of this target, or as many layers as it fuses"
        )
    if len(set(layers)) != len(layers) or not all(0 <= one <= count for one in layers):
        raise ConfigError(
            f"{shown}: {target.name} has blocks 0 .. {count - 1} (and {count}, what leaves the "
            "last); give each once"
        )
    return layers


@torch.no_grad()
def own_head(
    net: Eagle3Net, target: Target, vocabulary: str | None, runtime: Runtime
) -> tuple[Table, Tensor | None]:
    """The head over the rows that the target (and the file of ids) knows, and their target ids.

    Raises ConfigError if the head is for another vocabulary, or none of its rows is left.
    """
    ids, weight = net.target_ids(), net.lm_head.weight
    said = net.options.vocab_size
    if not net.options.mapped and len(ids) < (said or target.vocab_size):
        raise ConfigError(
            f"drafter.path: the head has {len(ids)} rows and no d2t that maps them to the "
            f"{target.vocab_size} tokens of {target.name}; export it with d2t"
        )
    kept = ids < target.vocab_size
    if vocabulary is not None:
        where = "drafter.vocabulary"
        listed = read_ids(vocabulary, vocab_size=target.vocab_size, where=where)
        kept = kept & torch.isin(ids, listed.to(ids.device))
    if not bool(kept.any()):
        raise ConfigError(
            f"drafter.vocabulary={vocabulary}: none of these tokens is among the "
            f"{len(ids)} that the head knows"
        )
    ids = ids[kept]
    if len(ids) < len(weight):
        weight = weight[kept]

    table = runtime.table(weight)

    def head(states: Tensor) -> Tensor:
        return table(net.normed(states))

    same = len(ids) == target.vocab_size
    return head, None if same else ids
