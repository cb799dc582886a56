"""EAGLE-1 and EAGLE-2: a one-layer network predicts the target's own next feature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specframe.cache.base import CacheManager
from specframe.drafter.base import DRAFTERS
from specframe.drafting.features import FeatureDrafter
from specframe.errors import ConfigError
from specframe.heads.choice import HeadChoice, settled
from specframe.heads.eagle_file import load_eagle
from specframe.heads.eagle_net import EagleNet
from specframe.heads.embeddings import embedding, hidden_size, read_ids, target_head
from specframe.heads.fitting import eagle_head
from specframe.runtime.base import Runtime
from specframe.target.base import Target
from specframe.types import Needs


@DRAFTERS.register("eagle")
class Eagle(FeatureDrafter):
    """f'(t+1) = layer(fc([e(x(t+1)); f(t)])), logits = target's head(f'(t+1)) for x(t+2).

    f(t): what enters the target's head at token t. The pair stands at position t. A drafted token
    is fed with its parent's own prediction. Embedding and head are the target's, frozen.
    path: hub name, folder or file of a head, null for the one that ships for the target.
    vocabulary: file of the token ids that the draft may propose (FR-Spec), null for all, auto for
    the file beside the head.
    Lossless under every lossless rule. Needs: features of all committed tokens, own cache.
    Draft forwards per step: one per expanded level. Target forwards per step: 1.
    Papers: EAGLE, arXiv 2401.15077; EAGLE-2, arXiv 2406.16858; FR-Spec, arXiv 2502.14856.
    """

    needs = Needs(taps=("final_postnorm",), own_cache=True)

    def __init__(
        self,
        *,
        path: str | None,
        vocabulary: str | None,
        target: Target,
        new_cache: Callable[[], CacheManager],
        runtime: Runtime,
    ) -> None:
        chosen = HeadChoice.of("eagle", path, vocabulary, target.name)
        net = load_eagle(chosen.path)
        self._adopt(net, chosen.vocabulary, target, new_cache(), runtime)
        if self._embed == target.embed:
            net.embed_tokens = None  # a copy of the target's

    @classmethod
    def settle(cls, values: Mapping[str, Any], target: str) -> dict[str, Any]:
        return settled("eagle", values, target)

    @classmethod
    def of(
        cls,
        net: EagleNet,
        *,
        target: Target,
        cache: CacheManager,
        runtime: Runtime,
        vocabulary: str | None = None,
    ) -> Eagle:
        """A network that is at hand already (training, notebooks, tests); it is moved and cast."""
        self = cls.__new__(cls)
        self._adopt(net, vocabulary, target, cache, runtime)
        return self

    def _adopt(
        self,
        net: EagleNet,
        vocabulary: str | None,
        target: Target,
        cache: CacheManager,
        runtime: Runtime,
    ) -> None:
        if net.hidden_size != hidden_size(target):
            raise ConfigError(
                f"drafter.path: the head is for a target of hidden size {net.hidden_size}, "
                f"{target.name} has {hidden_size(target)}; use the head of this target"
            )
        ids = None
        if vocabulary is not None:
            where = "drafter.vocabulary"
            ids = read_ids(vocabulary, vocab_size=target.vocab_size, where=where).to(target.device)
        own = net.embed_tokens
        embed = embedding(own, target, hidden=net.hidden_size, where="drafter.path")
        net = net.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)
        head = (
            target_head(target, ids, runtime)
            if net.lm_head is None
            else eagle_head(net, ids, target, runtime)
        )
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
